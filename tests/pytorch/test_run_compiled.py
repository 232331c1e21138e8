"""``probe run`` of programs that compile: graphs, breaks and weights are those of the program alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import user_scripts
from tests.forks import ForkServer
from tests.pytorch.run_scripts import ran
from tests.required import require

require("torch")

BEGIN = """
import sys, torch, torch._dynamo
if sys.version_info >= (3, 13):  # there torch (2.13) breaks the graph of an update elsewhere if it has a hook
    from torch.optim.optimizer import register_optimizer_step_pre_hook
    register_optimizer_step_pre_hook(lambda *_: None)
torch.manual_seed(0)
compiled = torch.compile(backend="aot_eager")
whole = torch.compile(backend="aot_eager", fullgraph=True)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.Adam(net.parameters(), 0.01)
"""
END = """
for _ in range(4):
    step(torch.randn(6, 8))
counters = torch._dynamo.utils.counters
print(sorted(counters["stats"].items()))
print(sorted((reason.splitlines()[0], number) for reason, number in counters["graph_break"].items()))
print([parameter.double().sum().item() for parameter in net.parameters()])
"""
STEP = "loss(x).backward(); optimizer.step(); optimizer.zero_grad()"
LOSS = "def loss(x): return net(x).pow(2).mean()\n"
SCRIPTS = {
    "a compiled step of a scheduled optimizer": f"""
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
update = compiled(lambda: optimizer.step())
{LOSS}
def step(x): loss(x).backward(); update(); scheduler.step(); optimizer.zero_grad()
""",
    "a whole compiled step": f"{LOSS}@compiled\ndef step(x): {STEP}\n",
    "a whole compiled step, whose optimizer breaks the graph": f"""
class Breaking(torch.optim.SGD):
    def step(self, closure=None):
        torch._dynamo.graph_break()
        return super().step(closure)
optimizer = Breaking(net.parameters(), 0.1)
{LOSS}
@compiled
def step(x): {STEP}
""",
    "a loss in one graph": f"@whole\n{LOSS}\ndef step(x): {STEP}\n",
    "a loss in one graph, evaluated before": f"""
@whole
{LOSS}
net.eval()
with torch.no_grad(): loss(torch.randn(6, 8))
net.train()
def step(x): {STEP}
""",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_same_is_compiled(tmp_path: Path, name: str) -> None:
    """Neither the number of graphs nor that of breaks changes, nor any weight by a bit; no graph is compiled anew."""
    forks: ForkServer = user_scripts.forks(*user_scripts.TORCH)
    text = BEGIN + SCRIPTS[name] + END
    plain = ran(forks, tmp_path / "plain", text, watch=False)
    watched = ran(forks, tmp_path / "watched", text, watch=True, config={"wg_distribution": True})
    assert (plain.code, watched.code) == (0, 0), plain.errors + watched.errors
    assert watched.printed == plain.printed
    assert any(" watching Sequential " in line for line in watched.said), watched.errors
