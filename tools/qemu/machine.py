# SPDX-License-Identifier: Apache-2.0
"""The virtual machine: a kernel of Debian, a file system of its own making, and its hardware."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import lzma
import marshal
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
GUEST = HERE / "guest.py"

PACKAGES = ["qemu-system-x86", "seabios", "busybox-static", "cpio", "kmod"]
COMMANDS = ["qemu-system-x86_64", "busybox", "cpio", "depmod"]
#: It names the newest of Debian's small kernels, which has NVMe, SR-IOV and VT-d built in.
_KERNEL = "linux-image-cloud-amd64"
#: Those of Linux 6.1; later ones have the second within the first.
_MODULES = ["irqbypass", "vfio", "vfio_virqfd", "vfio_iommu_type1", "vfio-pci-core", "vfio-pci"]
_BUSYBOX = ["sh", "hostname", "modprobe", "mount", "poweroff"]
_LIBUDEV = "libudev.so.1"
_DISK_BYTES = 64 << 20


class Failed(Exception):
    """There is no machine; the sentence says why."""


def get_packages() -> None:
    """Install what is missing.

    :raises Failed: it cannot be installed
    """
    if all(shutil.which(command, path=_path()) for command in COMMANDS):
        return
    options = ["--yes", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300"]
    _apt("install", *options, *PACKAGES)


def get_kernel(folder: Path) -> Path:
    """Where a kernel's package is unpacked, which is not installed.

    :raises Failed: it cannot be downloaded
    """
    name = _newest_kernel()
    if name is None:
        _apt("update")
        name = _newest_kernel()
    if name is None:
        raise Failed(f"apt knows no {_KERNEL}")
    unpacked = folder / name
    if not (unpacked / "boot").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        # As root, or else apt's own user would have to be able to write here.
        _apt("download", "-o", "APT::Sandbox::User=root", name, cwd=folder)
        (package,) = folder.glob(f"{name}_*.deb")
        subprocess.run(["dpkg-deb", "--extract", package, unpacked], check=True)
        package.unlink()
    return unpacked


def make_root(folder: Path, kernel: Path) -> Path:
    """Pack the machine's file system: busybox, what the tests need of Python, kernel modules."""
    root = folder / "root"
    shutil.rmtree(root, ignore_errors=True)
    for name in ("bin", "dev", "etc", "proc", "run", "sbin", "sys", "tmp"):
        (root / name).mkdir(parents=True)
    busybox = shutil.which("busybox", path=_path())
    shutil.copy(str(busybox), root / "bin/busybox")
    for name in _BUSYBOX:
        (root / "bin" / name).symlink_to("busybox")
    command = _put_python(root)
    _put_modules(root, kernel)
    init = root / "init"
    init.write_text(
        "#!/bin/sh\n"
        "export PATH=/bin:/sbin\n"
        "mount -t proc p /proc; mount -t sysfs s /sys; mount -t devtmpfs d /dev\n"
        "hostname guest; modprobe vfio-pci\n"
        f"{command}\n"
        "poweroff -f\n"
    )
    init.chmod(0o755)
    packed = folder / "root.cpio"
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*"))
    with packed.open("wb") as archive:
        subprocess.run(
            ["cpio", "--create", "--format=newc", "--quiet"],
            cwd=root,
            input="\n".join(names).encode(),
            stdout=archive,
            check=True,
        )
    return packed


def command(kernel: Path, root: Path, disk: Path) -> list[str]:
    """The command that runs the machine until it switches itself off; it speaks on stdout."""
    with disk.open("wb") as file:
        file.truncate(_DISK_BYTES)
    (image,) = (kernel / "boot").glob("vmlinuz-*")
    controller = (
        "nvme,id=nv0,serial=cafe0,subsys=sub0,bus=rp1,sriov_max_vfs=8,sriov_vq_flexible=16,"
        "sriov_vi_flexible=8,max_ioqpairs=26,msix_qsize=32"
    )
    return [
        "qemu-system-x86_64",
        *("-machine", "q35", "-accel", "tcg,thread=multi"),
        # Without it QEMU 7.2 crashes newer kernels in cmpxchg16b.
        *("-cpu", "max,cx16=off", "-smp", "2", "-m", "1G"),
        *("-nodefaults", "-nographic", "-serial", "stdio", "-no-reboot"),
        *("-device", "intel-iommu"),
        *("-object", "memory-backend-ram,size=512M,id=m0", "-numa", "node,memdev=m0,cpus=0"),
        *("-object", "memory-backend-ram,size=512M,id=m1", "-numa", "node,memdev=m1,cpus=1"),
        *("-device", "pxb-pcie,id=pxb,bus_nr=128,numa_node=1,bus=pcie.0"),
        *("-device", "pcie-root-port,id=rp1,bus=pxb,chassis=2,slot=2"),
        *("-drive", f"if=none,id=d0,format=raw,file={disk},discard=unmap"),
        *("-device", "nvme-subsys,id=sub0", "-device", controller),
        *("-device", "nvme-ns,drive=d0,bus=nv0", "-device", "edu,bus=pcie.0"),
        *("-kernel", str(image), "-initrd", str(root)),
        *("-append", "console=ttyS0 quiet loglevel=1 panic=-1 intel_iommu=on iommu=pt"),
    ]


def _newest_kernel() -> str | None:
    ask = ["apt-cache", "depends", "--important", _KERNEL]
    output = subprocess.run(ask, stdout=subprocess.PIPE, text=True, check=False).stdout
    found = re.search(r"Depends: (linux-image-\S+)", output)
    return found[1] if found is not None else None


def _put_python(root: Path) -> str:
    """Copy the running interpreter and the modules of the tests, where they are here.

    Returns the command that runs the tests.
    """
    output = subprocess.run(
        [sys.executable, GUEST, "--files"], stdout=subprocess.PIPE, check=True, text=True
    ).stdout
    listed = json.loads(output)
    interpreter = Path(sys.executable).resolve()
    libudev = _library(_LIBUDEV)
    shared = [interpreter, libudev]
    for name, file in listed["modules"].items():
        if file.endswith(".py"):
            _put_module(root, name, Path(file))
        else:
            shared.append(Path(file))
    for path in [*shared, *_libraries(shared), *map(Path, listed["data"])]:
        _put(root, path)
    _put(root, GUEST)
    # pyudev looks for the library where the dynamic linker does.
    _put(root, Path("/sbin/ldconfig"))
    (root / "etc/ld.so.conf").write_text(f"{libudev.parent}\n")
    subprocess.run(["/sbin/ldconfig", "-r", root], check=True)
    path = ":".join([str(ROOT), *listed["path"]])
    return f"PYTHONHOME={sys.base_prefix} PYTHONPATH={path} {interpreter} {GUEST}"


def _put_module(root: Path, name: str, file: Path) -> None:
    """A module and its code, which nobody checks there: compiling takes long in the machine."""
    _put(root, file)
    loader = importlib.machinery.SourceFileLoader(name, str(file))
    code = loader.get_code(name)
    assert code is not None
    digest = importlib.util.source_hash(file.read_bytes())
    compiled = Path(importlib.util.cache_from_source(str(file)))
    compiled = root / compiled.relative_to("/")
    compiled.parent.mkdir(exist_ok=True)
    compiled.write_bytes(
        importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + digest + marshal.dumps(code)
    )


def _put_modules(root: Path, kernel: Path) -> None:
    (tree,) = (kernel / "lib/modules").iterdir()
    place = root / "lib/modules" / tree.name
    place.mkdir(parents=True)
    for name in _MODULES:
        for file in tree.rglob(f"{name}.ko*"):
            packed = file.suffix == ".xz"
            data = lzma.decompress(file.read_bytes()) if packed else file.read_bytes()
            (place / f"{name}.ko").write_bytes(data)
    for file in tree.glob("modules.*"):
        shutil.copy(file, place)
    depmod = shutil.which("depmod", path=_path())
    subprocess.run([str(depmod), "--basedir", root, tree.name], check=True)


def _put(root: Path, path: Path) -> None:
    target = root / path.relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        shutil.copy2(path, target)


def _library(name: str) -> Path:
    listed = subprocess.run(["/sbin/ldconfig", "-p"], stdout=subprocess.PIPE, text=True, check=True)
    found = re.search(rf"{re.escape(name)} .*x86-64.* => (\S+)", listed.stdout)
    if found is None:
        raise Failed(f"there is no {name}")
    return Path(found[1])


def _libraries(files: Iterable[Path]) -> set[Path]:
    """The shared libraries that the files need, and those that they need."""
    output = subprocess.run(["ldd", *files], stdout=subprocess.PIPE, text=True, check=False).stdout
    return {Path(path) for path in re.findall(r"(?:=> |^\s+)(/\S+) \(0x", output, re.MULTILINE)}


def _apt(*arguments: str, cwd: Path | None = None) -> None:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    fetch = ["apt-get", "--quiet", "--quiet", *arguments]
    done = subprocess.run(fetch, cwd=cwd, env=env, stdout=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        # The lists may be older than what the archive has now.
        subprocess.run(["apt-get", "--quiet", "--quiet", "update"], env=env, check=False)
        done = subprocess.run(fetch, cwd=cwd, env=env, stdout=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise Failed(f"apt-get {arguments[0]} fails; install {' '.join(PACKAGES)}")


def _path() -> str:
    # Where administrators' commands are, an ordinary user's path need not have.
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
