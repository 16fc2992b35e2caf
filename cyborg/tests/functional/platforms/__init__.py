# SPDX-License-Identifier: Apache-2.0
"""Platforms beside Nova: Kubernetes, containers, Ironic and Ansible."""
