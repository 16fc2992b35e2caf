# SPDX-License-Identifier: Apache-2.0
"""``[cleaning]``: what happens to a device between two guests."""

from __future__ import annotations

from collections.abc import Collection

from oslo_config import cfg, types

OFF, ON, REQUIRED = "off", "on", "required"
_POLICY = types.String(choices=[OFF, ON, REQUIRED])

OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        "default",
        default=OFF,
        choices=[
            (OFF, "Cyborg does not reset PCI functions; vfio does when a guest ends"),
            (ON, "reset or overwrite each device after use, if there is a way"),
            (
                REQUIRED,
                "the same, offer no device without such a way, and wait for one that left unclean",
            ),
        ],
        help="Whether PCI functions are reset, and FPGAs overwritten as blank_images says, before "
        "somebody else gets them. Controllers in [nvme] with a clear_action other than none are "
        "erased by their driver in any case, and mediated devices and virtual GPUs are removed. "
        "A reset erases no disk: where it is required, any other NVMe controller, a disk or disk "
        "controller in [pci], and a namespace of [nvmf_spdk] with reuse_without_erasing are not "
        "offered.",
    ),
    cfg.Opt(
        "classes",
        type=types.Dict(value_type=_POLICY),
        default={},
        help="Like default, for single resource classes, such as PGPU:required,CUSTOM_NIC:on.",
    ),
    cfg.Opt(
        "drivers",
        type=types.Dict(value_type=_POLICY),
        default={},
        help="Like default, for single drivers, by their names in [agent] enabled_drivers, such as "
        "intel_qat_driver:required. The option classes overrides this one.",
    ),
    cfg.Opt(
        "blank_images",
        type=types.Dict(value_type=types.String(max_length=255)),
        default={},
        help="The image of Glance, by its UUID or its name, that overwrites what the last guest "
        "may have left in an FPGA, by a trait of the deployable, its resource class or its "
        "driver, for example CUSTOM_FPGA_INTEL_PAC_ARRIA10:blank-a10,xilinx_fpga_driver:UUID. A "
        "trait goes before a class, and that before a driver. A deployable of a function pool is "
        "overwritten with the image of the pool, so that its function stays ready. An FPGA "
        "without such an image is not overwritten, and not offered where it is required.",
    ),
]


def policy(conf: cfg.ConfigOpts, resource_class: str, drivers: Collection[str]) -> str:
    """The policy for a resource class of a driver that has these names: one of the three."""
    options = conf.cleaning
    if resource_class in options.classes:
        return str(options.classes[resource_class])
    named = [options.drivers[name] for name in sorted(drivers) if name in options.drivers]
    return str(named[0] if named else options.default)


def blank_image(
    conf: cfg.ConfigOpts,
    traits: Collection[str],
    resource_class: str,
    drivers: Collection[str],
) -> str | None:
    """The blank image for a deployable with these traits, of a driver that has these names."""
    images = conf.cleaning.blank_images
    named = [*sorted(traits), resource_class, *sorted(drivers)]
    return next((str(images[name]) for name in named if images.get(name)), None)
