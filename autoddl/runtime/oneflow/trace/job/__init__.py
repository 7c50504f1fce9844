"""What OneFlow's lazy mode records of a model, read into plain values."""
