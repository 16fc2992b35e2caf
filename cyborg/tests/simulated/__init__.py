# SPDX-License-Identifier: Apache-2.0
"""Simulated hosts: a fake ``/sys`` made from small YAML files, shown to unmodified code.

``preload`` has the fixture ``simulate`` for tests that read, and change the host themselves;
how to use it is in ``doc/source/contributor/testing.rst``.
"""
