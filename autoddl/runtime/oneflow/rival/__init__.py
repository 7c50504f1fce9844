"""OneFlow's own planner, `enable_auto_parallel` of nn.Graph, asked for its choice.

`choice.py` asks in a process of its own (`worker.py`) and reads the compiled job; the model is a
`Graph` alone, so nothing is trained, and the devices need not exist.
"""
