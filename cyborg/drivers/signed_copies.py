# SPDX-License-Identifier: Apache-2.0
"""Copies of bitstreams whose signature a helper has verified, in the process that writes them."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import stat
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from oslo_config import cfg

from cyborg.conf import programming as programming_conf
from cyborg.drivers import image_signatures

_NOT_ROOT = (
    "[programming] require_signature needs the helper to run as root, so that nobody changes what "
    "was verified: use sudo, or switch the option off"
)
_MIB = 1024 * 1024


@contextlib.contextmanager
def signed(path: str, signature: Mapping[str, str]) -> Iterator[str]:
    """The path of what was signed: a copy that the agent's user cannot change any more.

    Who has become that user may say anything of the file, but this process reads the options
    itself, from a file of root.
    """
    options = programming_options()
    if options.require_signature and os.geteuid() != 0:
        # The copy would belong to that user as well.
        raise OSError(errno.EKEYREJECTED, _NOT_ROOT)
    if not signature:
        if options.require_signature:
            sentence = f"{path} is not signed, and [programming] require_signature is true"
            raise OSError(errno.EKEYREJECTED, sentence)
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="cyborg-") as folder:
        copy = pathlib.Path(folder, "bitstream")
        try:
            copy_file(path, copy, options.max_bitstream_mib)
        except OSError as exc:
            raise OSError(errno.ENOENT, f"{path} cannot be copied: {exc}") from exc
        try:
            image_signatures.verify(copy, signature, options.trusted_certificate_ids)
        except image_signatures.NoKeyManager as exc:
            raise OSError(errno.ENOKEY, f"The signature cannot be verified now: {exc}") from exc
        except image_signatures.BadSignature as exc:
            raise OSError(errno.EKEYREJECTED, f"The signature is not good: {exc}") from exc
        yield str(copy)


def copy_file(path: str, copy: pathlib.Path, max_mib: int) -> None:
    """Copy a file that another user may replace, or write to, at any moment.

    :raises OSError: it is larger than that, or no file: one without an end would fill the disk
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a file")
        left = max_mib * _MIB + 1
        with open(descriptor, "rb", closefd=False) as source, copy.open("xb") as target:
            while left and (part := source.read(min(left, _MIB))):
                left -= target.write(part)
    finally:
        os.close(descriptor)
    if not left:
        sentence = f"it has more than {max_mib} MiB, see [programming] max_bitstream_mib"
        raise OSError(errno.EFBIG, sentence)


def programming_options() -> Any:
    """The options of ``[programming]`` that this process has read itself."""
    # The helper registers no options but those of oslo.privsep.
    cfg.CONF.register_opts(programming_conf.OPTS, group="programming")
    return cfg.CONF.programming
