# SPDX-License-Identifier: Apache-2.0
"""A plugin of the Container Network Interface (CNI): runtimes of containers run ``cyborg-cni``.

It is a client of Cyborg's API, and runs ``ip``. What it has given is in files, as no process stays.
"""
