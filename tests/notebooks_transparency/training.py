# A model that is trained in one cell after another; few cells, as each job imports torch.
# %%
import torch
from torch import nn
torch.manual_seed(0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.dec = nn.Linear(8, 4), nn.Linear(4, 8)
        self.tied = self.enc.weight
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
    def forward(self, x): return self.dec(self.drop(torch.relu(self.norm(self.enc(x)))))
net = Net()
opt = torch.optim.Adam(net.parameters(), lr=0.01)
sched = torch.optim.lr_scheduler.StepLR(opt, 1, 0.5)
loss_fn = nn.MSELoss()
weights = list(net.parameters())
x = torch.randn(16, 8)
gen = torch.Generator().manual_seed(3)
# %%
view = x[2:4]; flat = x.view(-1)
view.zero_(); flat[0] = 7
loss_fn(net(x), x).backward()
[round(float(p.grad.norm()), 6) for p in net.parameters()], torch.rand(2, generator=gen)
# %%
opt.step(); opt.zero_grad()
sched.step()
sched.get_last_lr(), all(p.grad is None for p in weights), torch.rand(2, generator=gen)
# %%
def train(n):
    losses = []
    for _ in range(n):
        opt.zero_grad()
        loss = loss_fn(net(x), x)
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses
losses = train(3)
net.tied is net.enc.weight, weights[0] is net.enc.weight, opt.param_groups[0]["params"][0] is weights[0]
# %%
net.eval()
best = {k: v.clone() for k, v in net.state_dict().items()}
hooks = []
handle = net.enc.register_forward_hook(lambda m, i, o: hooks.append(tuple(o.shape)))
with torch.no_grad():
    out = net(x)
view += 1
torch.set_printoptions(precision=2); torch.set_default_dtype(torch.float64); torch.set_grad_enabled(False)
x[3].sum(), flat[17], hooks
# %%
torch.set_grad_enabled(True)
net.load_state_dict(best)
losses += train(2)
half = x.to(torch.bfloat16); empty = torch.empty(0, 3)
torch.tensor([1 / 3]), len(hooks), net(x).detach().sum()
