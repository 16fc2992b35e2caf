# SPDX-License-Identifier: Apache-2.0
"""Packaging entry point; everything is declared in setup.cfg."""

import setuptools

setuptools.setup(setup_requires=["pbr>=6.0.0"], pbr=True)
