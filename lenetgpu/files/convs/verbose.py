"""Lines that oneDNN prints with ONEDNN_VERBOSE: `onednn_verbose,v1,primitive,exec,cpu,...`.

Follows doc/performance_considerations/verbose.md and earlier versions. After `exec` come engine,
primitive, implementation, propagation, tensors, attributes, algorithm and a benchdnn descriptor.
"""

import re

from lenetgpu.files.convs import benchdnn
from lenetgpu.files.convs.described import Given

LINE = re.compile(r"\b(onednn|dnnl)_verbose,")
_TENSOR = re.compile(r"(?<!\S)(src|wei|bia|dst)[_:](\w+)")
_ATTRIBUTE = re.compile(r"(?<![\w-])(?:attr-)?(?!alg:)([a-z_-]+):('[^']*'|[^ ;]+)")


def read(line: str) -> Given | None:
    """Return an executed convolution, None for every other event; LenetError if it is invalid."""
    fields = line.strip().split(",")
    event = fields[fields.index("exec") :] if "exec" in fields else []
    if len(event) < 7 or event[2] not in ("convolution", "deconvolution"):
        return None
    types = dict(_TENSOR.findall(event[5]))
    forward = "FWD_D" if types.get("bia", "undef") == "undef" else "FWD_B"
    words = [f"--{event[2].removesuffix('olution')}"]
    words += [f"--dir={forward if event[4].startswith('forward') else event[4]}"]
    words += ["--dt=" + ":".join(types.get(name, "?") for name in ("src", "wei", "dst"))]
    for name, value in _ATTRIBUTE.findall(" ".join(event[6:])):
        value = value.strip("';").replace("eltwise_", "").replace(";", "+")
        words.append(f"--attr-{name.replace('_', '-')}={value}")
    words += [field for field in event[6:] if re.match(r"(g[0-9]+)?mb[0-9]", field)]
    return benchdnn.read(" ".join(words))
