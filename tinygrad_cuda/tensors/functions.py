"""Every function of the package's top; the `__all__` of its family says that it is one."""

from tinygrad_cuda.tensors.complex_numbers import *
from tinygrad_cuda.tensors.creation import *
from tinygrad_cuda.tensors.distributions import *
from tinygrad_cuda.tensors.exchange import *
from tinygrad_cuda.tensors.facts import *
from tinygrad_cuda.tensors.indexing.keys import *
from tinygrad_cuda.tensors.indexing.selecting import *
from tinygrad_cuda.tensors.indexing.writing import *
from tinygrad_cuda.tensors.inspection import *
from tinygrad_cuda.tensors.linalg.decomposing import *
from tinygrad_cuda.tensors.linalg.factorizing import *
from tinygrad_cuda.tensors.linalg.products import *
from tinygrad_cuda.tensors.math import *
from tinygrad_cuda.tensors.ordering import *
from tinygrad_cuda.tensors.quantiles import *
from tinygrad_cuda.tensors.random import *
from tinygrad_cuda.tensors.reductions import *
from tinygrad_cuda.tensors.searching import *
from tinygrad_cuda.tensors.settings import *
from tinygrad_cuda.tensors.shaping import *
from tinygrad_cuda.tensors.special import *
from tinygrad_cuda.tensors.spectrogram import *
from tinygrad_cuda.tensors.statistics import *
from tinygrad_cuda.tensors.window_functions import *
