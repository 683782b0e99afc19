"""Lines of MIOpenDriver: `./bin/MIOpenDriver conv -n 64 -c 64 -H 56 -W 56 -k 64 -p 1 -q 1`.

Follows its documentation and its help output. A flag is `-` and a letter or `--` and a name,
followed by its value. Defaults are those of MIOpenDriver (100 images of 3x32x32, 32 filters of
3x3).
"""

import re
from dataclasses import replace

from lenetgpu.errors import LenetError
from lenetgpu.files.convs.described import Given, convolution

DRIVER = re.compile(r"(?<!\S)\S*MIOpenDriver(\.exe)?(\s|$)")
_SIZES = {
    "n": ("batchsize", 100), "c": ("in_channels", 3), "H": ("in_h", 32), "W": ("in_w", 32),
    "k": ("out_channels", 32), "y": ("fil_h", 3), "x": ("fil_w", 3), "u": ("conv_stride_h", 1),
    "v": ("conv_stride_w", 1), "p": ("pad_h", 0), "q": ("pad_w", 0), "l": ("dilation_h", 1),
    "j": ("dilation_w", 1), "g": ("group_count", 1), "F": ("forw", 0), "_": ("spatial_dim", 2),
    "b": ("bias", 0),
}  # fmt: skip
_WORDS = {"m": ("mode", "conv"), "z": ("pad_mode", "default"), "r": ("pad_val", "0")}
# Flags that do not change the result of a two-dimensional forward convolution.
_IGNORED = {
    "i": "iter", "V": "verify", "t": "time", "w": "wall", "s": "search", "P": "printconv",
    "o": "dump_output", "d": "in_data", "e": "weights", "a": "in_bias",
    "D": "dout_data", "S": "solution", "C": "verification_cache",
    "I": "in_layout", "O": "out_layout", "f": "fil_layout", "L": "vector_length",
    "Z": "tensor_vect", "Y": "trans_output_pad_h", "X": "trans_output_pad_w", "!": "in_d",
    "@": "fil_d", "#": "conv_stride_d", "$": "pad_d", "%": "trans_output_pad_d", "^": "dilation_d",
}  # fmt: skip
_LETTERS = {
    name: letter
    for table in (_SIZES, _WORDS, _IGNORED)
    for letter, known in table.items()
    for name in (letter, known if isinstance(known, str) else known[0])
}
_TYPES = {"conv": "", "convfp16": "fp16", "convbfp16": "bf16", "convint8": "int8",
          "convfp8": "fp8", "convbfp8": "bf8"}  # fmt: skip
_DTYPES = {"": "fp32", "fp16": "fp16", "bf16": "bf16"}
_BACKWARD = (2, 4, 6)  # values of -F that do not run the forward convolution


def read(line: str) -> Given:
    """Return the convolution of a line, perhaps from a log; raise LenetError if it is invalid."""
    where = f"MIOpenDriver's {line!r}"
    start = DRIVER.search(line)
    words = line[start.end() :].split() if start else []
    if not words or words[0] not in _TYPES:
        found = words[0] if words else "nothing"
        raise LenetError(f"{where}: expected {', '.join(_TYPES)} after its name, found {found}")
    given = _flags(words[1:], where)
    numbers = {letter: given.get(letter, str(default)) for letter, (_, default) in _SIZES.items()}
    for letter, text in numbers.items():
        if not re.fullmatch(r"-?[0-9]{1,9}", text):
            raise LenetError(f"{where}: expected a whole number for -{letter}, found {text!r}")
    values = {letter: int(text) for letter, text in numbers.items()}
    mode, pads, pad_value = (given.get(letter, default) for letter, (_, default) in _WORDS.items())
    kind, known = _TYPES[words[0]], pads in ("default", "conv", "valid")
    reasons = {
        f"{kind} operands": kind not in _DTYPES,
        f"backward only (-F {values['F']})": values["F"] in _BACKWARD,
        "transposed" if mode == "trans" else f"mode {mode}": mode != "conv",
        f"{values['_']} spatial dimensions": values["_"] != 2,
        f"padding of {pad_value}": pad_value != "0",
        f"padding mode {pads}": not known,
    }
    others = tuple(reason for reason, holds in reasons.items() if holds)
    if not known or mode != "conv" or values["_"] != 2:
        return Given(None, others=others)
    if pads == "valid":
        values |= {"p": 0, "q": 0}
    n, c, h, w, m, y, x, u, v, p, q, far, wide, g = (values[k] for k in "ncHWkyxuvpqljg")
    problem = convolution(
        where, (n, h, w, c, m), (y, x), stride=(u, v), pad=(p, q), dilation=(far, wide), groups=g
    )  # fmt: skip
    problem = replace(problem, bias=values["b"] != 0, dtype=_DTYPES.get(kind, "fp32"))
    return Given(problem, n, others=others)


def _flags(words: list[str], where: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for flag, value in zip(words[::2], [*words[1::2], ""], strict=False):
        name = flag[2:] if flag.startswith("--") else flag[1:]
        letter = _LETTERS.get(name)
        if not flag.startswith("-") or letter is None or flag.startswith("--") != (len(name) > 1):
            raise LenetError(f"{where}: expected a flag of its convolutions, found {flag}")
        if not value:
            raise LenetError(f"{where}: expected a value after {flag}, found none")
        if letter in values:
            raise LenetError(f"{where}: expected each flag once, found {flag} twice")
        values[letter] = value
    return values
