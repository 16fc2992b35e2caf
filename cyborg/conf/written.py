# SPDX-License-Identifier: Apache-2.0
"""Files that operators write beside ``cyborg.conf``: which are read, and which are not."""

from __future__ import annotations

import glob
import pathlib
from collections.abc import Iterator

from oslo_config import cfg
from oslo_policy import opts as policy_opts

#: The names that the file of an option has in most deployments, whatever the option says.
_USUAL = {
    ("oslo_policy", "policy_file"): ("policy.yaml", "policy.yml", "policy.json"),
    ("oslo_policy", "policy_dirs"): ("policy.d",),
    ("api", "api_paste_config"): ("api-paste.ini",),
    ("api", "audit_map_file"): ("api_audit_map.conf",),
}


def files(conf: cfg.ConfigOpts) -> list[str]:
    """The files with options, those of folders too, in the order in which they are read."""
    # Like oslo.config: no hidden files.
    in_folders = (
        file
        for folder in conf.config_dir or ()
        for file in sorted(glob.glob(f"{glob.escape(folder)}/*.conf"))  # noqa: PTH207
    )
    return [*(conf.config_file or ()), *in_folders]


def passed_over(conf: cfg.ConfigOpts) -> Iterator[str]:
    """A sentence for each file that is there and is not read, or is named and not there."""
    yield from _beside(conf)
    others = {name for names in _USUAL.values() for name in names}
    folders = map(pathlib.Path, conf.config_dir or ())
    for path in (path for folder in folders for path in folder.glob("*")):
        # Of files that other options name, it is said below.
        if path.suffix != ".conf" and path.name not in others and not path.is_dir():
            yield f"{path} is not read: its name does not end in .conf."
    policy_opts.set_defaults(conf, policy_file="policy.yaml")
    for group, option in _USUAL:
        yield from _of_option(conf, group, option)


def _beside(conf: cfg.ConfigOpts) -> Iterator[str]:
    """A sentence for each file of a usual name beside one that is read."""
    read = {pathlib.Path(path).resolve() for path in (*files(conf), *(conf.config_dir or ()))}
    for folder in {pathlib.Path(file).parent for file in conf.config_file or ()}:
        for path in (*folder.glob("cyborg.conf*"), *folder.glob(f"{conf.prog}.conf*")):
            if path.suffix in {".conf", ".d"} and path.resolve() not in read:
                yield f"{path} is not read: --config-file or --config-dir names others only."


def _of_option(conf: cfg.ConfigOpts, group: str, option: str) -> Iterator[str]:
    value = conf[group][option]
    named = value if isinstance(value, list) else [value]
    found = {conf.find_file(name) for name in named}
    place = conf.get_location(option, group)
    if None in found and place and place.location.is_user_controlled:
        yield f"[{group}] {option} names {', '.join(named)}, which is not there."
    for other in {conf.find_file(name) for name in _USUAL[group, option]} - found - {None}:
        yield f"{other} is not read: [{group}] {option} is {', '.join(named)}."
