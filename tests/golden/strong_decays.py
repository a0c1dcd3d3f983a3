#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How many digits of the gradients behind strong decays does transformers' chunked gated delta rule keep?

  strong_decays.py

Run it with the python that setup_reference.sh prints. Numbers and truth are those of StrongDecays.CostNoDigits in src/ops/gated_delta_test.cc:
a recurrence in fp64, token by token, and log-decays of -10 to -25, everywhere or between weak ones. Printed is the largest difference of a
gradient as a fraction of its largest value. The table is in docs/results/strong_decays.md.
"""
import torch
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe

import hf_ref

DOCUMENTS = [(0, 90), (90, 130), (130, 220)]
KEY_HEADS, VALUE_HEADS, DIM = 2, 4, 16


def draw(spread):
    """In the order of the test: q, k, v, two that it replaces, states, a, and the gradients of output and final states."""
    torch.manual_seed(11)
    tokens = DOCUMENTS[-1][1]
    q, k, v = (torch.randn(tokens, heads, DIM, dtype=torch.float64) for heads in (KEY_HEADS, KEY_HEADS, VALUE_HEADS))
    torch.rand(tokens, VALUE_HEADS, dtype=torch.float64)
    beta = torch.rand(tokens, VALUE_HEADS, dtype=torch.float64)
    torch.randn(len(DOCUMENTS), VALUE_HEADS, DIM, DIM, dtype=torch.float64)
    a = torch.randn(tokens, VALUE_HEADS, dtype=torch.float64) * spread
    parameters = [torch.tensor([8.0, 10.0, 13.0, 16.0]).double().log(), torch.ones(VALUE_HEADS).double(), a]
    probes = [torch.randn(tokens, VALUE_HEADS, DIM, dtype=torch.float64),
              torch.randn(len(DOCUMENTS), VALUE_HEADS, DIM, DIM, dtype=torch.float64)]
    inputs = [x.float() for x in (q, k, v, log_decays(*parameters), beta)]
    return inputs, parameters, probes


def log_decays(a_log, dt_bias, a):
    return -a_log.exp() * torch.nn.functional.softplus(a + dt_bias)


def recur(q, k, v, g, beta, **_):
    """Batches of one document; unit q and k as transformers makes them."""
    q, k = (modeling_qwen3_5_moe.l2norm(x, dim=-1, eps=1e-6).repeat_interleave(VALUE_HEADS // KEY_HEADS, 2) for x in (q, k))
    state, out = torch.zeros(VALUE_HEADS, DIM, DIM, dtype=q.dtype), []
    for t in range(q.shape[1]):
        state = state * g[0, t].exp()[:, None, None]
        written = beta[0, t][:, None] * (v[0, t] - (state * k[0, t][:, :, None]).sum(1))
        state = state + k[0, t][:, :, None] * written[:, None, :]
        out.append((state * q[0, t][:, :, None]).sum(1) * DIM**-0.5)
    return torch.stack(out)[None], state[None]


def gradients(rule, inputs, parameters, probes, dtype):
    leaves = [x.detach().to(dtype).requires_grad_() for x in inputs]
    for i, (begin, end) in enumerate(DOCUMENTS):
        out, state = rule(*(x[None, begin:end] for x in leaves), chunk_size=64, output_final_state=True,
                          use_qk_l2norm_in_kernel=True)
        torch.autograd.backward([out, state], [probes[0][None, begin:end].to(dtype), probes[1][i:i + 1].to(dtype)])
    grad_g = leaves[3].grad.double()
    behind = [x.clone().requires_grad_() for x in parameters]
    log_decays(*behind).backward(grad_g)
    return [grad_g] + [x.grad for x in behind]


def main():
    torch.set_num_threads(1)
    chunked = modeling_qwen3_5_moe.torch_chunk_gated_delta_rule
    chunked = getattr(chunked, "__wrapped__", chunked)
    for spread, what in ((0.5, "strong everywhere"), (4.0, "between weak ones")):
        drawn = draw(spread)
        exact = gradients(recur, *drawn, torch.float64)
        for dtype in (torch.float32, torch.float64):
            with hf_ref.fp64_throughout(dtype):
                got = gradients(chunked, *drawn, dtype)
            print("%s, transformers in %s:" % (what, dtype), ", ".join(
                "%s %.1e" % (name, (x - y).abs().max() / y.abs().max())
                for name, x, y in zip(("g", "A_log", "dt_bias", "a"), got, exact)))


if __name__ == "__main__":
    main()
