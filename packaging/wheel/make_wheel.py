"""Packs a finished binary as a wheel, so that `pip install` gives the command.

usage: make_wheel.py BINARY VERSION PLATFORM_TAG LICENSE README DIRECTORY COMPRESSION

Nothing is compiled: the wheel has the same bytes as the tarball. Two runs give the same file (SOURCE_DATE_EPOCH).
"""

import base64
import hashlib
import os
import sys
import time
import zipfile

PERMISSIONS_PROGRAM = 0o100755
PERMISSIONS_TEXT = 0o100644


def metadata(version: str, readme: str) -> str:
    return (
        "Metadata-Version: 2.1\n"
        "Name: hq-runtime\n"
        f"Version: {version}\n"
        "Summary: Runs very many tasks on a cluster, or on the machine in front of you\n"
        "License: MIT\n"
        "Requires-Python: >=3.8\n"
        "Description-Content-Type: text/markdown\n"
        "\n" + readme
    )


def main() -> None:
    binary, version, platform, license_file, readme, directory, level = sys.argv[1:]
    tag = f"py3-none-{platform}"
    name = f"hq_runtime-{version}"
    epoch = max(int(os.environ["SOURCE_DATE_EPOCH"]), 315532800)
    date = time.gmtime(epoch)[:6]
    wheel = f"Wheel-Version: 1.0\nGenerator: hq xtask dist\nRoot-Is-Purelib: false\nTag: {tag}\n"

    def content(path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    info = f"{name}.dist-info"
    files = [
        (f"{name}.data/scripts/hq", content(binary), PERMISSIONS_PROGRAM),
        (f"{info}/METADATA", metadata(version, content(readme).decode()).encode(), PERMISSIONS_TEXT),
        (f"{info}/WHEEL", wheel.encode(), PERMISSIONS_TEXT),
        (f"{info}/licenses/LICENSE", content(license_file), PERMISSIONS_TEXT),
    ]
    record = ""
    for path, data, _ in files:
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(data)}\n"
    record += f"{info}/RECORD,,\n"
    files.append((f"{info}/RECORD", record.encode(), PERMISSIONS_TEXT))

    target = os.path.join(directory, f"{name}-{tag}.whl")
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data, permissions in files:
            entry = zipfile.ZipInfo(path, date)
            entry.external_attr = permissions << 16
            entry.create_system = 3
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data, compresslevel=int(level))
    print(os.path.basename(target))


main()
