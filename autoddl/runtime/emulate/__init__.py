"""Emulated compute: waits in the place of kernels, so that communication can be measured alone."""
