"""What happens between the gradients and the next step: scaling, clipping, the state kept."""
