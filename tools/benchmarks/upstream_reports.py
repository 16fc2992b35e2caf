# SPDX-License-Identifier: Apache-2.0
"""Report hosts to the released upstream's conductor: see compare.py.

    upstream_reports.py CONFIG

Runs in upstream's environment. The devices are copies of the one that its fake driver finds.
"""

from __future__ import annotations

import copy
import json
import sys
import uuid
from concurrent import futures
from typing import Any

from stevedore import DriverManager

from cyborg.common import service
from cyborg.conductor import rpcapi
from cyborg.policy import context

NAMESPACE = "cyborg.accelerator.driver"


def devices(host: str, count: int, handles: int) -> list[Any]:
    """Devices of a host, as its agent would send them."""
    [found] = DriverManager(NAMESPACE, "fake_driver").driver().discover()
    made = []
    for number in range(count):
        device = copy.deepcopy(found)
        device.controlpath_id.cpid_info = json.dumps({"number": f"{number:04d}"})
        [deployable] = device.deployable_list
        deployable.name = f"{host}_{number:04d}"
        deployable.num_accelerators = handles
        deployable.attach_handle_list = deployable.attach_handle_list[:handles]
        for index, handle in enumerate(deployable.attach_handle_list):
            handle.attach_info = json.dumps({"device": f"{number:04d}", "index": f"{index:02d}"})
        made.append(device)
    return made


def main() -> None:
    """Take requests as lines of JSON; answer each when all its hosts are stored."""
    service.prepare_service(["reports", "--config-file", sys.argv[1]])
    admin = context.RequestContext(
        user_id="u", project_id=uuid.uuid4().hex, is_admin=True, overwrite=False
    )
    conductor = rpcapi.ConductorAPI()
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)

        def report(host: str, asked: dict[str, Any] = asked) -> None:
            found = devices(host, asked["devices"], asked["handles"])
            conductor.report_data(admin, host, found)

        with futures.ThreadPoolExecutor(asked["at_once"]) as pool:
            list(pool.map(report, asked["hosts"]))
        print("done", flush=True)


if __name__ == "__main__":
    main()
