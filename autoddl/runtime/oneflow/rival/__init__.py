"""OneFlow's own planner, `enable_auto_parallel` of nn.Graph, as a baseline to compare with.

`choice.py` runs it in a process of its own (`worker.py`) and reads its choice from the compiled
job. The model is given as a `Graph` alone, so nothing is trained and the devices need not exist.
"""
