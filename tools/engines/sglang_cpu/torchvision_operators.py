"""Lets PyPI's torchvision be imported beside a CPU build of torch.

It is built for CUDA and finds no operators of its own there; these are the two whose schemas its import needs.
"""

import torch

operators = torch.library.Library("torchvision", "DEF")
operators.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
operators.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
