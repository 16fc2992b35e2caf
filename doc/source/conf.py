# SPDX-License-Identifier: Apache-2.0
"""Sphinx configuration of the documentation."""

import pathlib
import sys

_DOC = pathlib.Path(__file__).resolve().parent.parent
# Cyborg itself, whose rules of policy are shown, and our own directives.
sys.path[:0] = [str(_DOC.parent), str(_DOC / "ext")]

project = "Cyborg"
copyright = "OpenStack contributors"
author = copyright
html_theme = "openstackdocs"
extensions = ["openstackdocstheme", "config_options", "policy_rules"]
openstackdocs_repo_name = "openstack/cyborg"
openstackdocs_auto_name = False
openstackdocs_pdf_link = False

#: What each command does, for the first line of its manual page.
_COMMANDS = {
    "cyborg-agent": "find the accelerators of a host and prepare them for guests",
    "cyborg-api": "serve the REST API",
    "cyborg-cni": "give network functions to containers",
    "cyborg-conductor": "bind accelerators, write to Placement, tell Nova",
    "cyborg-dbsync": "create, upgrade and fill the database",
    "cyborg-ironic": "show the accelerators of bare-metal nodes",
    "cyborg-kube": "give the devices of a node to pods of Kubernetes",
    "cyborg-nova-watcher": "report to function pools that Nova found no host",
    "cyborg-privsep-helper": "start a privileged helper of the agent",
    "cyborg-standalone": "run all of Cyborg in one process",
}
man_pages = [
    *((f"cli/{name}", name, does, author, 8) for name, does in _COMMANDS.items()),
    ("reference/cyborg-status", "cyborg-status", "find and repair problems", author, 8),
]
