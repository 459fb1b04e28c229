"""The Muon optimizer in float32."""

import torch
from torch import Tensor


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalized updates, for weight matrices (https://kellerjordan.github.io/posts/muon/).

    The step size matches AdamW's. `torch.optim.Muon` works in bfloat16, which is 20 times slower on processors
    without bfloat16 units.
    """

    def __init__(self, parameters, lr: float, momentum: float = 0.95, weight_decay: float = 0.01):
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                state["momentum"].lerp_(parameter.grad, 1 - group["momentum"])
                update = orthogonalize(parameter.grad.lerp(state["momentum"], group["momentum"]))
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(update, alpha=-0.2 * max(update.shape) ** 0.5 * group["lr"])


def orthogonalize(matrix: Tensor, steps: int = 5) -> Tensor:
    """Push the singular values of a matrix towards 1 by a quintic Newton-Schulz iteration."""
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x
