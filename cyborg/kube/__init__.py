# SPDX-License-Identifier: Apache-2.0
"""A driver of Kubernetes' Dynamic Resource Allocation (DRA): what ``cyborg-kube`` runs on a node.

It is a client, of Cyborg's API and of Kubernetes', and a server of the kubelet's.
"""
