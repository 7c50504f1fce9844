"""Tensors that travel between two meshes (cross-mesh resharding, AlpaComm)."""
