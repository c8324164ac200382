"""Starts SGLang, unmodified, beside a CPU build of torch: `python launch.py FLAGS OF sglang.launch_server`

The processes that SGLang spawns import this file as well, so torchvision works in them too.
"""

import os
import sys

import torchvision_operators  # noqa: F401 - before anything that imports torchvision

if __name__ == "__main__":
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    sys.argv[0] = "sglang.launch_server"
    arguments = prepare_server_args(sys.argv[1:])
    try:
        run_server(arguments)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)
