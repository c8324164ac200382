"""Starts SGLang, unmodified, beside a CPU build of torch: `python launch.py FLAGS OF sglang.launch_server`

PyPI's torchvision is built for CUDA and finds no operators of its own here; the two whose schemas its import needs
are declared first. The processes that SGLang spawns import this file as well, so they have them too.
"""

import os
import sys

import torch

operators = torch.library.Library("torchvision", "DEF")
operators.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
operators.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

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
