# SPDX-License-Identifier: Apache-2.0
"""Options of cyborg-kube, besides keystoneauth's for the accelerator API."""

from oslo_config import cfg

OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        "driver_name",
        default="cyborg.openstack.org",
        regex=r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$",
        help="The name of the driver in Kubernetes: a domain. Device classes and attributes of "
        "devices contain it. Each of several Cyborgs in one cluster needs its own.",
    ),
    cfg.StrOpt(
        "node_name",
        sample_default="[DEFAULT] host",
        help="Name of this machine's node in Kubernetes, if it is not [DEFAULT] host.",
    ),
    cfg.StrOpt(
        "taint_reason",
        default="kubernetes",
        help="Reason of the taint that gives a device, or all devices of a host, to Kubernetes. "
        "The taint of a device overrides the taint of its host.",
    ),
    cfg.StrOpt(
        "kubeconfig",
        help="File that says how Kubernetes is reached. Unset, the service account of the pod is "
        "used.",
    ),
    cfg.StrOpt(
        "plugins_dir",
        default="/var/lib/kubelet/plugins",
        help="The kubelet's folder of plugins. The kubelet must see it under the same path.",
    ),
    cfg.StrOpt(
        "registry_dir",
        default="/var/lib/kubelet/plugins_registry",
        help="The folder in which the kubelet looks for new plugins.",
    ),
    cfg.StrOpt(
        "cdi_dir",
        help="Folder of CDI files in which container runtimes look, such as /var/run/cdi, for "
        "files that tell pods of their devices (KEP-5304). The runtime must see it and plugins_dir "
        "under the same paths. Unset, pods are not told, and there is no administrative access.",
    ),
    cfg.IntOpt(
        "interval",
        default=10,
        min=1,
        mutable=True,
        help="Seconds between two looks at the devices of the host. Changes are published.",
    ),
    cfg.IntOpt(
        "prepare_timeout",
        default=30,
        min=1,
        mutable=True,
        help="Seconds for which the kubelet waits until accelerators are ready. It asks again "
        "after that, and gives up a call after 45 seconds.",
    ),
    cfg.BoolOpt(
        "binding_conditions",
        default=True,
        mutable=True,
        help="Have Kubernetes' scheduler wait until a device that can be programmed has the "
        "program that its claim names. Needs the feature gate DRADeviceBindingConditions, which "
        "is on by default from Kubernetes 1.36 on. Without this a device is programmed when its "
        "pod starts.",
    ),
    cfg.IntOpt(
        "program_timeout",
        default=600,
        min=1,
        mutable=True,
        help="Seconds that programming a device for a claim may take. The scheduler's "
        "bindingTimeout, which is 600 seconds by default, should not be shorter.",
    ),
    cfg.IntOpt(
        "lease_seconds",
        default=86400,
        min=60,
        mutable=True,
        help="Seconds for which a node that has died keeps its accelerators. The lease is renewed "
        "at least at a third of that. It must be longer than any outage of cyborg-kube or Cyborg: "
        "after its end others may get accelerators that a pod still uses.",
    ),
    cfg.BoolOpt(
        "evict_unhealthy",
        default=False,
        mutable=True,
        help="Have Kubernetes end the pods of a device that has become unhealthy. Without this "
        "they keep it, and no other pod gets it.",
    ),
]
