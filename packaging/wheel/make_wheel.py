"""Packs a finished binary with the Python package `hq` as a wheel, so that `pip install` gives the command and the package.

usage: make_wheel.py BINARY VERSION PLATFORM_TAG LICENSE README DIRECTORY COMPRESSION
       make_wheel.py --hyperqueue VERSION LICENSE DIRECTORY COMPRESSION

Nothing is compiled: the wheel has the same bytes as the tarball. Two runs give the same file (SOURCE_DATE_EPOCH). The
second form makes the wheel with the package `hyperqueue`, which stands in for another project's package of that name. It
lies in a directory of its own, to which a .pth file leads behind all others: pip writes over nothing of that package, and
where that is installed Python finds it first.
"""

import base64
import hashlib
import os
import sys
import time
import zipfile

PERMISSIONS_PROGRAM = 0o100755
PERMISSIONS_TEXT = 0o100644

PYTHON = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python")


def content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def package(name: str) -> "list[tuple[str, bytes, int]]":
    """Files of one of our packages."""
    files = []
    for folder, folders, names in os.walk(os.path.join(PYTHON, name)):
        folders[:] = sorted(folder for folder in folders if folder != "__pycache__")
        for file in sorted(names):
            if file.endswith(".py") or file == "py.typed":
                path = os.path.join(folder, file)
                files.append((os.path.relpath(path, PYTHON), content(path), PERMISSIONS_TEXT))
    return files


def metadata(name: str, version: str, summary: str, readme: str, extra: str = "") -> str:
    return (
        "Metadata-Version: 2.1\n"
        f"Name: {name}\n"
        f"Version: {version}\n"
        f"Summary: {summary}\n"
        "License: MIT\n"
        "Requires-Python: >=3.9\n"
        f"{extra}"
        "Description-Content-Type: text/markdown\n"
        "\n" + readme
    )


def pack(name: str, version: str, tag: str, files: "list[tuple[str, bytes, int]]", described: str, license_file: str, directory: str, level: str) -> None:
    name = f"{name}-{version}"
    epoch = max(int(os.environ["SOURCE_DATE_EPOCH"]), 315532800)
    date = time.gmtime(epoch)[:6]
    is_pure = "true" if tag.endswith("-any") else "false"
    wheel = f"Wheel-Version: 1.0\nGenerator: hq xtask dist\nRoot-Is-Purelib: {is_pure}\nTag: {tag}\n"
    info = f"{name}.dist-info"
    files = files + [
        (f"{info}/METADATA", described.encode(), PERMISSIONS_TEXT),
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


def main() -> None:
    if sys.argv[1] == "--hyperqueue":
        version, license_file, directory, level = sys.argv[2:]
        summary = "The Python interface of HyperQueue on top of hq-runtime"
        needs = (
            f"Requires-Dist: hq-runtime =={version}\n"
            "Requires-Dist: cloudpickle >=2,<4\n"
            "Requires-Dist: tqdm >=4.60,<5\n"
            "Provides-Extra: all\n"
            "Requires-Dist: pydot >=1.4,<2; extra == 'all'\n"
        )
        readme = "Stands in for the package `hyperqueue` of HyperQueue where that is not installed.\n"
        described = metadata("hq-runtime-hyperqueue", version, summary, readme, needs)
        place = "hq_runtime_hyperqueue"
        files = [(f"{place}/{path}", data, permissions) for path, data, permissions in package("hyperqueue")]
        files.append((f"{place}.pth", f"{place}\n".encode(), PERMISSIONS_TEXT))
        pack("hq_runtime_hyperqueue", version, "py3-none-any", files, described, license_file, directory, level)
        return
    binary, version, platform, license_file, readme, directory, level = sys.argv[1:]
    name = f"hq_runtime-{version}"
    summary = "Runs very many tasks on a cluster, or on the machine in front of you"
    files = [(f"{name}.data/scripts/hq", content(binary), PERMISSIONS_PROGRAM), *package("hq")]
    described = metadata("hq-runtime", version, summary, content(readme).decode())
    pack("hq_runtime", version, f"py3-none-{platform}", files, described, license_file, directory, level)


main()
