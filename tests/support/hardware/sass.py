"""Instructions of a cubin, by NVIDIA's disassembler. It needs no GPU."""

import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from fractune_core.cuda import toolkit_roots

_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+\s+)?([A-Z][\w.]*)", re.MULTILINE)


def find_nvdisasm() -> str | None:
    """The disassembler of a toolkit, or on the PATH."""
    beside = (str(root / "bin/nvdisasm") for root in toolkit_roots())
    return next((each for each in beside if os.access(each, os.X_OK)), shutil.which("nvdisasm"))


MISSING = "" if find_nvdisasm() else "no nvdisasm here; `make setup` installs the package nvidia-cuda-nvdisasm"
"""why nothing can be disassembled"""


def instructions(cubin: bytes) -> Counter[str]:
    """How often each instruction occurs: `{"HMMA.16816.F32": 64}`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [str(find_nvdisasm()), "-c", str(path)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return Counter(_INSTRUCTION.findall(text))
