"""The state of a run in a folder: every rank writes its shards, and any other plan goes on from it.

shards         what this rank holds of the state, and the same back
pieces         parts of tensors in files, and the parts of them that a rank needs
folder         what makes a checkpoint whole: its manifest, its name, and which are kept
checkpoints    saving and loading, by all ranks together
"""
