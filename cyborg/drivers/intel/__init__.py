# SPDX-License-Identifier: Apache-2.0
"""Devices of Intel: FPGAs, GPUs, network cards, QAT, DSA and IAA, Gaudi."""
