# SPDX-License-Identifier: Apache-2.0
"""Options of the agent."""

from oslo_config import cfg

OPTS: list[cfg.Opt] = [
    cfg.ListOpt(
        "enabled_drivers",
        default=[],
        help="Entry-point names of the drivers that look for devices on this host. Without any, "
        "nothing is reported; cyborg-agent discover shows which drivers would find something.",
    ),
    cfg.IntOpt(
        "report_interval",
        default=60,
        min=1,
        deprecated_name="periodic_interval",
        deprecated_group="DEFAULT",
        mutable=True,
        help="Seconds after which an agent repeats its last report, as a sign of life. Changes are "
        "reported at once.",
    ),
    cfg.IntOpt(
        "discovery_interval",
        default=10,
        min=1,
        mutable=True,
        help="Seconds between two discovery passes, if that is less than report_interval. The "
        "first is made at start. A pass that finds what was reported before sends nothing.",
    ),
    cfg.IntOpt(
        "driver_timeout",
        default=30,
        min=1,
        mutable=True,
        help="Seconds a driver may take for one discovery. A driver that takes longer is "
        "reported as failed, its known devices are kept, and it is not called again before it "
        "has returned.",
    ),
    cfg.BoolOpt(
        "report_readings",
        default=False,
        help="Read the sensors of the devices at each discovery pass, and send the readings with "
        "each report: the API and the status page show the last ones of each device. It takes "
        "some milliseconds a device, and may wake one that sleeps to save power.",
    ),
    cfg.BoolOpt(
        "hotplug",
        default=True,
        help="Make a discovery pass within a second after an event of the kernel: a device came, "
        "went or changed its driver. Without this, only the periodic pass finds the change.",
    ),
    cfg.StrOpt(
        "resource_provider_name",
        help="Name of this host's root resource provider in Placement, which is Nova's name of "
        "the node. By default [DEFAULT] host, or the machine's fully qualified name if "
        "that is [DEFAULT] host with a domain and Placement has a root provider of that "
        "name.",
    ),
    cfg.MultiStrOpt(
        "sriov_spec",
        default=[],
        help="How many virtual functions (VFs) physical PCI functions have: a JSON object, or a "
        "list of them, with vendor_id, product_id, address or devname as in [pci] device_spec, "
        'and with numvfs, a number or "all". With vf_driver, such as vfio-pci, the host\'s own '
        "drivers are kept from the VFs, and that one gets each VF that has none. The first object "
        "that matches a function counts. It is applied at each pass. A number is only changed if "
        "no VF of the function may be in use, and a function that the host itself uses is left "
        "alone. May be given several times.",
    ),
    cfg.StrOpt(
        "cdi_dir",
        help="Folder in which the agent writes, for each accelerator that is in use, a file of the "
        "Container Device Interface (CDI), and removes it before the accelerator is given to "
        "others. Container runtimes must look for such files there. Use a folder in /run that "
        "only the agent and root may write: a user who writes there is root on the host. Each bind "
        "and release of an accelerator of the host is then a step of its agent. Unset, no files "
        "are written.",
    ),
    cfg.ListOpt(
        "cdi_spec_dirs",
        default=["/etc/cdi", "/var/run/cdi"],
        help="Folders in which vendors' tools keep files of the Container Device Interface (CDI). "
        "With cdi_dir the agent copies from there what a container needs of its accelerator, such "
        "as the libraries of a GPU. A file of a later folder counts more.",
    ),
    cfg.BoolOpt(
        "require_host_keys",
        default=False,
        help="Take no message between agents and conductors that is not signed. A conductor then "
        "needs [conductor] signing_key_file and takes messages only of hosts with an enrolled key; "
        "an agent needs conductor_public_keys. Set it for all of them, when every host has an "
        "enrolled key. Without it anybody with the message broker's account of one host can report "
        "for hosts without an enrolled key. The default will be true in the next release.",
    ),
    cfg.ListOpt(
        "conductor_public_keys",
        default=[],
        help="The public keys of the conductors, which may order steps of this host. `openssl pkey "
        "-pubout -in FILE` prints the key of [conductor] signing_key_file, between its first and "
        "last line. List the former and the next key while conductors change theirs.",
    ),
]
