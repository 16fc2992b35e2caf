# SPDX-License-Identifier: Apache-2.0
"""``openstack accelerator``: the commands that this service adds to OpenStackClient.

They replace some commands of python-openstackclient and of python-cyborgclient. Each takes the
same arguments as before, and has the same columns, with others beside them.
"""
