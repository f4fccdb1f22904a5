"""Where torch's own code lies when it was built, or installed, from a source tree: outside site-packages."""

import re
from typing import Final

TORCH_TREE: Final = re.compile(
    r"(?:^|/)(?=torch/(?:_\w+|serialization|functional|storage|random|hub|library)\.py$"
    r"|torch/(?:autograd|cuda|distributed|utils|optim|amp|accelerator|jit|fx|func|multiprocessing|backends"
    r"|nn/(?:modules|parallel|utils)|_\w+)/)"
)
