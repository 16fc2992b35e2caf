# SPDX-License-Identifier: Apache-2.0
"""GPUs of NVIDIA: whole, divided, and what their tools and sensors say."""
