"""Logs in lines that once gave a wrong number, a wrong status, no row, or a run where there was
none.

Each excerpt was typed for its test. What it shows is named by the test, and holds for the siblings
of the format, too.
"""

import math
from pathlib import Path

import pytest
from importer_excerpts import EXCERPTS, LINES, TEXT_FORMATS

from llmbench.core.errors import RequestError
from llmbench.importers.base import STATED, STEP_COLUMNS, Source
from llmbench.importers.formats import detect
from llmbench.importers.runs import Runs
from llmbench.importers.table import FORMATS, import_path

ROOT = Path(__file__).parents[1]


@pytest.fixture
def read(tmp_path):
    "The runs of a text, as run files."

    def runs(text: str | bytes, format: str | None = None):
        path = tmp_path / "a.log"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return import_path(path, format=format).runs

    return runs


def logged(run, name: str) -> list[float | None]:
    return next(c.values for c in run.logged if c.name == name)


def texts(run, kind: str) -> list[str]:
    return [e.text for e in run.events if e.kind == kind]


def megatron(
    step: int, ms: float, planned: int = 6, loss: float | None = 9.0, more: str = ""
) -> str:
    told = f" lm loss: {loss:.6E} |" if loss is not None else ""
    return (
        f" iteration {step:8d}/{planned:8d} | consumed samples: {8 * step:12d} | elapsed time per"
        f" iteration (ms): {ms:.1f} |{more} learning rate: 1.000E-05 | global batch size:     8"
        f" |{told} number of skipped iterations:   0 | number of nan iterations:  "
        f" {int(loss is None)} |\n"
    )


PRIMUS = "[20260811 08:38:38][rank-7/8][INFO ] [print_rank_last_patches.py:91] : "


# --- Wrong numbers


@pytest.mark.parametrize("prefix", ["", PRIMUS])
def test_a_second_row_that_is_the_mean_of_two_is_undone(read, prefix):
    """The first iteration is printed without setting the counters back: 30 and (30 + 8) / 2 ms,
    losses alike.
    """
    mean = " throughput per GPU (TFLOP/s/GPU): 100.0 |"
    rows = [
        (1, 30.0, 12.0),
        (2, 19.0, 11.5),
        (3, 8.1, 10.0),
        (4, 8.0, 9.5),
        (5, 7.9, 9.2),
        (6, 8.0, 9.0),
    ]
    (run,) = read("".join(prefix + megatron(i, ms, loss=loss, more=mean) for i, ms, loss in rows))
    assert run.steps.time_s == [0.03, 0.008, 0.0081, 0.008, 0.0079, 0.008]
    assert run.steps.loss == [12.0, 11.0, 10.0, 9.5, 9.2, 9.0]
    assert logged(run, "time_mean_s")[1] == 0.019 and logged(run, "tflops_per_gpu")[:3] == [
        100.0,
        None,
        100.0,
    ]
    assert any(t.startswith("steps.time_s = ") for t in texts(run, "derived"))
    (plain,) = read(
        "".join(
            prefix + megatron(i, ms, loss=loss)
            for i, ms, loss in [(1, 30.0, 12.0), (2, 8.2, 11.5), *rows[2:]]
        )
    )
    assert plain.steps.time_s[:2] == [0.03, 0.0082] and plain.steps.loss[1] == 11.5


def test_primus_prints_newer_fields(read):
    more = (
        " compute per GPU (TFLOP/s/GPU): 674.5 (avg 675.5)  | tokens/s/GPU inst/harmonic mean:"
        " 11647.3/11663.2 | hip mem usage/free/total/usage_ratio: 159.96GB/32.02GB/191.98GB/83.32%"
        " | rank-3 rocm max mem usage/usage_ratio: 161.20GB/83.97% |"
    )
    (run,) = read("".join(PRIMUS + megatron(i, 8.0 + i / 10, more=more) for i in range(1, 7)))
    assert (
        logged(run, "tflops_per_gpu") == [674.5] * 6
        and logged(run, "tokens_per_s_per_gpu") == [11647.3] * 6
    )
    assert logged(run, "memory_gib") == [159.96] * 6
    assert {r.rank: r.peak_reserved_bytes for r in run.ranks} == {
        7: round(159.96 * 2**30),
        3: round(161.2 * 2**30),
    }
    titan = (
        " memory usage/free/total: 145.40GiB/142.58GiB/(50.49%) | tokens per GPU (tokens/s/GPU):"
        " 6759.1 | mfu: 45.67% | loss: 1.189155E+01 |"
    )
    (run,) = read(
        "".join(
            PRIMUS
            + megatron(i, 8.0, loss=None, more=titan).replace(
                "nan iterations:   1", "nan iterations:   0"
            )
            for i in range(1, 7)
        )
    )
    assert (
        run.steps.loss[0] == 11.89155
        and logged(run, "mfu_pct")[0] == 45.67
        and run.ranks[0].peak_reserved_bytes == round(145.4 * 2**30)
    )


def test_experts_are_read(read):
    dump = (
        "arguments ---\n  num_experts ..... {}\n  moe_router_topk ..... 2\n "
        " expert_model_parallel_size ..... 4\n  moe_aux_loss_coeff ..... 0.01\n---- end of"
        " arguments ---\n"
    )
    for experts in ("8", "[8]"):
        (run,) = read(
            "----- " + dump.format(experts) + "".join(megatron(i, 8) for i in range(1, 7))
        )
        assert (
            run.spec.model.n_experts,
            run.spec.model.experts_per_token,
            run.spec.strategy.ep,
        ) == (8, 2, 4)
        assert run.spec.model.balance_coef == 0.01
    (run,) = read("----- " + dump.format("[1]") + "".join(megatron(i, 8) for i in range(1, 7)))
    assert run.spec.model.n_experts == 1 and run.spec.model.experts_per_token is None
    yaml = "  num_moe_experts: 64\n  moe_router_topk: 6\n  expert_model_parallel_size: 8\n"
    (run,) = read(yaml + EXCERPTS["megatron-bridge"].decode())
    assert (run.spec.model.n_experts, run.spec.model.experts_per_token, run.spec.strategy.ep) == (
        64,
        6,
        8,
    )


NEOX_ROW = (
    " samples/sec: 12.5 | iteration {i:8d}/       3 | elapsed time per iteration (ms): 9{i}.0 |"
    " lm_loss: 9.0E+00 | number of skipped iterations:   0 |\n"
)


def test_phases_belong_to_the_row_that_they_follow_or_precede(read):
    """Megatron's own breakdown stands after its row, that of DeepSpeed's engine before it, and
    neither goes into the next run.
    """
    after = "".join(
        NEOX_ROW.format(i=i) + f"time (ms) | forward: {i}00.0 | backward: {i}50.0\n"
        for i in (1, 2, 3)
    )
    (run,) = read(after)
    assert logged(run, "forward_s") == [0.1, 0.2, 0.3] and logged(run, "backward_s") == [
        0.15,
        0.25,
        0.35,
    ]
    engine = (
        "[2026-01-01 00:00:0{i},000] [INFO] [logging.py:96:log_dist] [Rank 0] rank=0 time (ms) |"
        " forward: {i}00.0 | step: 1.0\n"
    )
    before = "".join(engine.format(i=i) + NEOX_ROW.format(i=i) for i in (1, 2, 3))
    (run,) = read(before)
    assert logged(run, "forward_s") == [0.1, 0.2, 0.3]
    dump = (
        "---------- arguments ----------\n  num_layers ...... {n}\n---------- end of arguments"
        " ----------\n"
    )
    first, second = read(
        dump.format(n=2)
        + after
        + engine.format(i=7)
        + dump.format(n=4)
        + "".join(NEOX_ROW.replace("(ms): 9", "(ms): 8").format(i=i) for i in (1, 2, 3))
    )
    assert logged(first, "forward_s") == [0.1, 0.2, 0.3] and all(
        c.name != "forward_s" for c in second.logged
    )


def test_a_learning_rate_goes_to_the_step_that_it_names(read):
    timer = (
        "[2026-01-01 00:00:{i}0,000] [INFO] [timer.py:199:stop] 0/{i}0,"
        " RunningAvgSamplesPerSec=10.0, CurrSamplesPerSec=1{i}.0\n"
    )
    rate = (
        "[INFO] [logging.py:96:log_dist] [Rank 0] step={i}0, skipped=0, lr=[{i}e-05], mom=[0.9]\n"
    )
    (run,) = read(rate.format(i=1) + timer.format(i=1) + rate.format(i=2) + timer.format(i=3))
    assert run.steps.step == [10, 30] and run.steps.lr == [1e-05, None]


def test_rows_of_two_ranks_on_one_line(read):
    "Each row has the rank that is named before it, and what is cut off in the middle is no number."
    row = (
        PRIMUS.replace("rank-7", "rank-{r}")
        + megatron(
            1,
            8.0,
            planned=1,
            more=" hip mem usage/free/total/usage_ratio: {m}.0GB/1.0GB/192.0GB/83.3% |",
        ).strip()
    )
    (run,) = read(
        row.format(r=6, m=60).partition("learning rate")[0] + row.format(r=7, m=70) + "\n"
    )
    assert [r.rank for r in run.ranks] == [6] and run.steps.lr is None
    half = (
        PRIMUS.replace("rank-7", "rank-6") + " iteration 1/ 1 | elapsed time per iteration (ms): 80"
    )
    (run,) = read(half + row.format(r=7, m=70) + "\n")
    assert [r.rank for r in run.ranks] == [7] and run.steps.time_s == [0.008]
    (run,) = read(
        "iteration 1/ 2 | elapsed time per iteration (ms): 80saving checkpoint | lm loss:"
        " 9.0E+00 |\n" + megatron(2, 8.0, planned=2)
    )
    assert run.steps.step == [2]


@pytest.mark.parametrize("name", TEXT_FORMATS)
def test_two_ranks_in_one_stream_invent_no_number(name, tmp_path):
    import random

    from test_importers_fuzz import check

    for seed in range(8):
        rng, out = random.Random(seed), []
        for line in EXCERPTS[name].splitlines():
            at = rng.randrange(len(line) + 1)
            out.append(
                rng.choice(
                    [
                        line + line,
                        line[:at] + line + line[at:],
                        line[:at] + line + b"\n" + line[at:],
                    ]
                )
            )
        check(name, b"\n".join(out) + b"\n", tmp_path / "a.log", text=EXCERPTS[name].decode())


def test_a_dictionary_is_no_name_of_an_optimizer(read):
    repr_of = "{'type': 'Adam', 'params': {'lr': 0.001, 'betas': [0.9, 0.95], 'eps': 1e-08}}"
    dump = (
        f"---------- arguments ----------\n  optimizer ....... {repr_of}updated\n---------- end of"
        " arguments ----------\n"
    )
    (run,) = read(dump + "".join(NEOX_ROW.format(i=i) for i in (1, 2, 3)))
    told = run.spec.optimizer
    assert (told.name, told.lr, told.betas, told.eps) == ("Adam", 0.001, (0.9, 0.95), 1e-08)
    (run,) = read(dump.replace("updated", "") + "".join(megatron(i, 8) for i in range(1, 7)))
    assert run.spec.optimizer.name is None


def test_the_first_of_rows_that_are_means_is_none(read):
    "Step 1 is printed at once, the next row after ten: it is the mean of one step."
    (run,) = read("".join(megatron(i, 8, planned=30) for i in (1, 10, 20, 30)))
    assert run.steps.mean_of == [1, 10, 10, 10]
    rows = "".join(LINES["torchtitan"].format(i=i, loss=9.0) + "\n" for i in (1, 5, 9))
    (run,) = read(rows)
    assert run.steps.mean_of == [1, 4, 4]


# --- How a run ended

_TRACE = (
    'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\nRuntimeError:'
    " boom\n"
)
_WORDS = {
    "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***\n": (
        "timeout"
    ),
    "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***\n": "cancelled",
    'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\nKeyboardInterrupt\n': (
        "cancelled"
    ),
    _TRACE: "crash",
    "AssertionError\n": "crash",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n": "oom",
    "": "cancelled",
}


@pytest.mark.parametrize("name", TEXT_FORMATS)
def test_a_run_is_ok_only_where_its_log_says_that_it_ended(name, read):
    """Six rows of a longer plan, or of no plan at all, and then each kind of last words; nanochat
    and modded-nanogpt tell their end.
    """
    text = EXCERPTS[name].decode()
    rows = text.partition("Peak memory")[0]
    for words, status in _WORDS.items():
        (run,) = read(rows + words, format=name)
        assert run.status == status and run.reason, (name, words, run.status, run.reason)


ENDED = {
    "primus": (
        "[20260811 08:46:32][rank-0/8][DEBUG] [utils.py:385] : [after training is done] datetime:"
        " 2026-08-11 08:46:32 \n"
    ),
    "megatron-bridge": "[after training is done] datetime: 2026-08-11 08:46:32 \n",
    "gpt-neox": (
        "[2026-10-19 23:15:07,620] [INFO] [launch.py:346:main] Process 115970 exits successfully.\n"
    ),
    "deepspeed": (
        "[2026-10-19 23:15:07,620] [INFO] [launch.py:346:main] Process 115970 exits successfully.\n"
    ),
    "megatron-lm": "[exiting program at iteration 6] datetime: 2026-08-11 08:46:32 \n",
    "nemo-2": "`Trainer.fit` stopped: `max_steps=6` reached.\n",
    "nemo-1": "`Trainer.fit` stopped: `max_steps=6` reached.\n",
    "torchtitan": "[rank0]:[titan] 2026-05-24 19:58:40,710 - root - INFO - Training completed\n",
    "nanochat": "Total training time: 179.44m\n",
    "modded-nanogpt": "peak memory allocated: 33277 MiB reserved: 48892 MiB\n",
    "llm.c": "total average iteration time: 4212.080000 ms\n",
}


@pytest.mark.parametrize("name", ENDED)
def test_each_format_says_its_end(name, read):
    (run,) = read(EXCERPTS[name].decode().partition("Peak memory")[0] + ENDED[name], format=name)
    assert run.status == "ok" and run.reason is None
    (run,) = read(
        EXCERPTS[name].decode().partition("Peak memory")[0]
        + ENDED[name]
        + LINES[name].format(i=7, n=224, t=8000.0, s=8.0, loss=9.0)
        + "\n",
        format=name,
    )
    assert run.status == ("ok" if "max_steps" in ENDED[name] else "cancelled"), (
        "an end before the last row is none; a plan that is done is one"
    )


def test_a_plan_that_is_done_is_an_end(read):
    "Also with a row every ten steps, also where a signal follows; a traceback is none."
    rows = "".join(megatron(i, 8) for i in range(1, 7))
    assert read(rows)[0].status == "ok"
    assert read("".join(megatron(i, 8, planned=65) for i in range(10, 70, 10)))[0].status == "ok"
    assert read("".join(megatron(i, 8, planned=7) for i in range(1, 7)))[0].status == "cancelled"
    signal = read(rows + "Killing subprocess 17\n")[0]
    assert signal.status == "ok" and any("Killing" in t for t in texts(signal, "end"))
    assert read(rows + _TRACE)[0].status == "crash"
    iters = "".join(LINES["nanogpt"].format(i=i, loss=9.0, t=80.0) + "\n" for i in range(7))
    assert read("max_iters = 600000\nOverriding: max_iters = 6\n" + iters)[0].status == "ok"
    assert read("Overriding: max_iters = 9\n" + iters)[0].status == "cancelled"


def test_words_of_a_second_start_are_its_own(read):
    dump = (
        "---------- arguments ----------\n  num_layers ...... 2\n---------- end of arguments"
        " ----------\n"
    )
    rows = "".join(megatron(i, 8) for i in range(1, 7))
    first, second = read(
        dump + rows + dump + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
    )
    assert (first.status, second.status, second.steps.step) == ("ok", "oom", [])
    assert len(read(dump + rows + dump)) == 1, "a start without a row and without a word is no run"


@pytest.mark.parametrize("odd", [3, 120, 200])
def test_many_losses_that_are_not_numbers(read, odd):
    """The loss is no number at the end, in 120 rows of 240 with sound ones after them (more events
    than are listed), or in most rows.
    """
    lost = {3: range(237, 240), 120: range(11, 131), 200: range(30, 230)}[odd]
    text = "max_iters = 239\n" + "".join(
        f"iter {i}: loss {'nan' if i in lost else 4.0}, time 80.00ms\n" for i in range(240)
    )
    (run,) = read(text)
    assert run.status == "diverged"
    calm = text.replace("nan", "4.0").replace("iter 9: loss 4.0", "iter 9: loss nan")
    assert read(calm)[0].status == "ok"


def test_megatron_prints_no_loss_that_is_no_number(read):
    (run,) = read("".join(megatron(i, 8, loss=9.0 if i < 4 else None) for i in range(1, 7)))
    assert (
        run.status == "diverged"
        and run.steps.loss[3:] == [None, None, None]
        and run.steps.time_s[5] == 0.008
    )


# --- Rows that were lost


def test_nanochat_names_its_dtype(read):
    text = EXCERPTS["nanochat"].decode()
    (known,) = read(text)
    for other in (text.replace("mfu:", "bf16_mfu:"), text.replace("| mfu: 52.10 ", "")):
        (run,) = read(other)
        assert run.steps == known.steps
    (named,) = read(text.replace("mfu:", "bf16_mfu:"))
    assert logged(named, "mfu_pct") == logged(known, "mfu_pct") == [52.1] * 6


def test_llmc_prints_nan_in_the_width_of_a_number(read):
    row = (
        "step    {i}/4 | loss     {x} (+nanz)| norm   {x} (-nanz)| lr 8.57e-07 | 4200.10 ms | 29.2%"
        " bf16 MFU | 113446 tok/s\n"
    )
    (run,) = read(
        "".join(row.format(i=i, x=x) for i, x in enumerate(("4.5", "4.4", "nan", "-nan"), 1))
    )
    assert (
        run.steps.step == [1, 2, 3, 4]
        and run.steps.time_s == [4.2001] * 4
        and run.status == "diverged"
    )
    (run,) = read(
        "s:0 trl:4.5 lr:0.1 norm:1.0\ns:1 trl:-nan lr:0.1 norm:-nan\ns:2 trl:nan lr:nan norm:nan\n"
    )
    assert run.steps.step == [0, 1, 2] and run.status == "diverged"


def test_modded_nanogpt_counts_in_seconds(read):
    (known,) = read(
        "".join(f"step:{i}/3 train_time:{100 * i}ms step_avg:100.00ms\n" for i in (1, 2, 3))
    )
    (run,) = read("".join(f"step:{i}/3 train_time:{i / 10}s step_avg:0.10s\n" for i in (1, 2, 3)))
    assert run.steps == known.steps and run.steps.time_s == [None, 0.1, 0.1]


def test_a_row_that_is_glued_to_another_line(read):
    glued = (
        "[2026-01-01 00:00:0{i},000] [INFO] [timer.py:199:stop] 0/{i},"
        " RunningAvgSamplesPerSec=10.0, CurrSamplesPerSec=11.0"
    )
    rows = [megatron(i, 8, planned=3).strip() for i in (1, 2, 3)]
    flops = (
        "-- DeepSpeed Flops Profiler --\nProfile Summary at step 2:\nfwd+bwd flops per GPU = 1.2"
        " TFLOPS"
    )
    done = read(
        "[INFO] [config.py:9:print]   train_batch_size ... 8\n"
        + "\n".join(glued.format(i=i + 1) + " " + row for i, row in enumerate(rows))
        + "\n"
    )
    assert done[0].steps.step == [1, 2, 3] and done[0].source.format == "deepspeed"
    profiled = (
        f"[INFO] [config.py:9:print]   train_batch_size ... 8\n{rows[0]}\n{flops}{rows[1]}\n FLOPS"
        f" per GPU: 3.1 TFLOPS{rows[2]}\n"
    )
    assert read(profiled)[0].steps.step == [1, 2, 3]
    bridge = "".join(
        f"Step Time : 2.3{i}s GPU utilization: 402.{i}MODEL_TFLOP/s/GPU {row}\n"
        for i, row in enumerate(rows)
    )
    (run,) = read(bridge)
    assert run.steps.time_s == [0.008] * 3 and logged(run, "tflops_per_gpu") == [
        402.0,
        402.1,
        402.2,
    ]


def test_bridge_without_its_line_of_iterations(read):
    step = "Step Time : 2.{i}8s GPU utilization: 40{i}.5MODEL_TFLOP/s/GPU\n"
    (run,) = read("".join(step.format(i=i) for i in (1, 2, 3)))
    assert (
        run.steps.step == [1, 2, 3]
        and run.steps.time_s == [2.18, 2.28, 2.38]
        and logged(run, "tflops_per_gpu")[2] == 403.5
    )
    assert any("steps.step = " in t for t in texts(run, "derived"))
    bare = [
        megatron(i, 8, planned=3).replace("elapsed time per iteration (ms): 8.0 |", "")
        for i in (1, 2, 3)
    ]
    (run,) = read("".join(step.format(i=i + 1) + row for i, row in enumerate(bare)))
    assert run.steps.time_s == [2.18, 2.28, 2.38] and run.steps.loss == [9.0] * 3


CONSOLE = "{{'loss': {loss}, 'grad_norm': 1.5, 'learning_rate': 1e-05, 'epoch': 0.{i}}}\n"


def test_the_trainer_is_not_deepspeed(tmp_path):
    "A log of the Trainer under DeepSpeed has DeepSpeed's configuration and none of its rows."
    path = tmp_path / "a.log"
    path.write_text(
        "[2026-01-01 00:00:00,000] [INFO] [config.py:962:print]   train_batch_size ............."
        " 128\n" + "".join(CONSOLE.format(loss=9 - i, i=i) for i in range(1, 7))
    )
    assert detect(Source(path), FORMATS).name == "hf-trainer"
    with pytest.raises(RequestError, match="no row of deepspeed"):
        import_path(path, format="deepspeed")


def test_lines_that_are_understood_are_no_run(read):
    dump = (
        EXCERPTS["megatron-lm"].decode().partition("-------------------- end")[0]
        + "-------------------- end of arguments ---------------------\n"
    )
    for name in TEXT_FORMATS:
        with pytest.raises(RequestError, match="no row of"):
            read(dump, format=name)
    with pytest.raises(
        RequestError, match="of 12 lines understood, but no row of megatron-lm was found"
    ):
        read(dump, format="megatron-lm")


# --- Taken though it is none


@pytest.mark.parametrize("first", TEXT_FORMATS)
def test_two_logs_in_one_file_are_refused(first, read):
    for second in TEXT_FORMATS:
        kinds = {f.name: f for f in FORMATS}
        known = {first, *kinds[first].holds}, {second, *kinds[second].holds}
        if second in known[0] or first in known[1]:
            continue
        with pytest.raises(RequestError, match="two logs in one file"):
            read(EXCERPTS[first] + EXCERPTS[second])


WORDS = {
    "torchtitan": "[rank0]:[titan] 2026-05-24 19:58:20,644 - root - INFO - Starting job\n",
    "primus": "[Primus] a banner\n[20251218 08:15:50][rank-7/8][INFO ] [trainer.py:1] : hello\n",
    "megatron-bridge": "import megatron.bridge.recipes\nmem-max-allocated-gigabytes\n",
    "gpt-neox": "NeoXArgs.from_ymls() ['70M.yml']\n",
    "deepspeed": (
        "[INFO] [config.py:962:print]   train_batch_size ............. 128\n[timer.py:199:stop]\n"
    ),
    "nemo-2": "Training epoch 0, iteration 3/19 | a line of a guide\n",
    "llm.c": "s:0 tel:11.0095\n",
    "nanogpt": "iter 10: loss <value>, time <value>ms\n",
}


@pytest.mark.parametrize("name", WORDS)
def test_a_word_is_no_row(name, tmp_path):
    path = tmp_path / "a.txt"
    path.write_text(WORDS[name] * 3)
    assert detect(Source(path), FORMATS) is None


def _texts(*roots: Path) -> list[Path]:
    kinds = {
        ".py",
        ".md",
        ".ipynb",
        ".txt",
        ".rst",
        ".toml",
        ".yaml",
        ".yml",
        ".json",
        ".html",
        ".js",
        ".css",
        ".c",
        ".h",
        ".qmd",
        ".cfg",
        ".lua",
        ".sh",
    }
    found = (p for root in roots for p in (root.rglob("*") if root.is_dir() else [root]))
    return sorted(
        p
        for p in found
        if p.suffix in kinds
        and ".git" not in p.parts
        and p.is_file()
        and not p.is_symlink()
        and p.stat().st_size < 2 * 2**20
    )


def _taken(paths: list[Path]) -> list[tuple[str, str]]:
    lines = [f for f in FORMATS if f.lines]
    found = ((p, detect(Source(p), lines)) for p in paths)
    return [(p.name, f.name) for p, f in found if f]


def test_no_source_and_no_document_of_this_project_is_a_log():
    paths = _texts(
        *(
            ROOT / name
            for name in (
                "nbs",
                "llmbench",
                "tests",
                "reports",
                "params",
                "docker",
                "k8s",
                "README.md",
                "CHANGELOG.md",
            )
        )
    )
    assert len(paths) > 300 and _taken(paths) == []


@pytest.mark.slow
def test_no_source_of_any_installed_package_is_a_log():
    paths = _texts(Path(pytest.__file__).parents[1])
    assert len(paths) > 3000 and _taken(paths) == []


# --- What a log states


def test_what_a_log_states_has_one_name(read):
    names = {"tokens/s/GPU", "tok_per_s", "device_memory_gib", "reserved_gib", "tflops"}
    for name in TEXT_FORMATS:
        (run,) = read(EXCERPTS[name], format=name)
        told = {c.name for c in run.logged}
        assert not told & names and not told & set(STEP_COLUMNS)
        for column in told & set(STATED):
            assert all(v is None or math.isfinite(v) for v in logged(run, column))
    expected = {
        "torchtitan": {"tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_pct", "memory_gib"},
        "primus": {"tokens_per_s_per_gpu", "memory_gib"},
        "nanochat": {"tokens_per_s", "mfu_pct"},
        "deepspeed": {"memory_gib"},
        "llm.c": {"mfu_pct"},
        "megatron-lm": {"tflops_per_gpu"},
        "megatron-bridge": {"tflops_per_gpu"},
        "gpt-neox": {"tflops_per_gpu"},
    }
    for name, columns in expected.items():
        assert columns <= {c.name for c in read(EXCERPTS[name], format=name)[0].logged}


def test_every_format_of_logs_is_judged():
    assert {f.name for f in FORMATS if f.lines} == set(TEXT_FORMATS) and hasattr(Runs, "finished")
