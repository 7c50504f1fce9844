"""What a trace of a model must find before it may be trained."""
