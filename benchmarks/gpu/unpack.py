"""The step `unpack`: the carried wheels become a folder on PYTHONPATH, and packs are decompressed. The standard
library alone.
"""

import lzma
import shutil
import sys
import zipfile
from pathlib import Path


def main() -> None:
    options = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    carried, work = Path(options["--carried"]), Path(options["--work"])
    packages = work / "packages"
    packages.mkdir()
    for path in carried.glob("*.xz"):
        with lzma.open(path) as packed, (work / path.stem).open("wb") as file:
            shutil.copyfileobj(packed, file)
    wheels = sorted((carried / "wheels").glob("*.whl"))
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as file:
            file.extractall(packages)
    print(f"{len(wheels)} wheels")


if __name__ == "__main__":
    main()
