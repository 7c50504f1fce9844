# autograd wraps NumPy's functions at run time, under the same names.
from numpy import *  # noqa: F403
from numpy import linalg as linalg
