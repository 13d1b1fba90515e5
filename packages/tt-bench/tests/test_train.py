"""`tt train` on lessons whose truth is known."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tt_bench import files, lessons
from tt_bench.errors import BenchError
from tt_bench.recording import Recording
from tt_bench.train import Training, checkpoint_of, train
from tt_bench_toy import Schooled, recorded, school, task
from tt_spec import Plugins, Prediction, UserError, hookimpl
from tt_spec.hooks import Entry
from tt_spec.pieces.null_surrogate import NullSurrogate

HERE = Path(__file__).parent


def plugins(**models):
    class Hooks:
        @hookimpl
        def tt_surrogates(self):
            return [Entry(name, build) for name, build in {"schooled": Schooled, **models}.items()]

    return Plugins([("toy", Hooks())], installed=False)


def what(tmp_path, **more):
    return Training((), "schooled", tmp_path / "w", **{"options": {"rounds": 30}, **more})


def test_a_model_that_learns_ranks_operators_that_it_never_saw(tmp_path):
    said = []
    done = train(what(tmp_path), plugins(), data=school(), say=said.append)
    apart = done.card["metrics"]["apart"]
    assert apart["operators"] == 2 and apart["pairs"][0] > 0.9
    assert apart["best of 16"][0] > apart["best of 16 by chance"][0]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["w", "w.md"], "the checkpoint is gone"
    assert json.loads((tmp_path / "w").read_text())["card"] == done.card, "the card is in the file"
    assert said[0] == "schooled learns from 480 rows of 8 operators; kept apart: 120 rows of 2 operators"
    assert "of pairs kept apart" in said[1]


def test_the_card_says_where_the_weights_come_from(tmp_path):
    data = school()
    card = train(what(tmp_path, seed=4), plugins(), data=data).card
    assert card["data"]["sha256"] == lessons.data_hash(data[::-1]) != lessons.data_hash(data[1:])
    assert card["data"]["cpus"] == ["toy/2 cores"] and card["data"]["rows"] == 600
    assert card["seed"] == 4 and card["options"] == {"rounds": 30} and "numpy" in card["versions"]
    assert card["kinds"] == {
        data[0].task.op: {"operators": 10, "apart": 2, "pairs": card["metrics"]["apart"]["pairs"][0]}
    }
    page = (tmp_path / "w.md").read_text()
    for text in (card["data"]["sha256"], "toy/2 cores", *card["split"]["operators_apart"], "best of 16"):
        assert text in page


def test_shuffled_labels_teach_nothing(tmp_path):
    data, rng = school(operators=20), np.random.default_rng(0)
    shuffled = [dataclasses.replace(x, seconds=rng.permutation(x.seconds)) for x in data]
    done = train(what(tmp_path), plugins(), data=shuffled)
    low, high = done.card["metrics"]["apart"]["pairs"][1:]
    assert low - 0.03 < 0.5 < high + 0.03 and high < 0.6


def test_operators_are_kept_apart_whole(tmp_path):
    data = school()
    twins = [dataclasses.replace(x, name=f"{x.name}-other", device="other cpu") for x in data]
    train_on, apart = lessons.split([*data, *twins], ["operator-3"], lambda name, p: name == p, 0.2, 0)
    assert {x.name for x in apart} == {"operator-3", "operator-3-other"}, "on every device"
    assert len(train_on) == 18
    drawn = [{x.name for x in lessons.split(data, [], str.__eq__, 0.2, seed)[1]} for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2] and len(drawn[0]) == 2


def test_an_operator_whose_weights_are_packed_by_the_width_of_vectors_is_one_on_all_devices():
    (wide, *_), shapes = school(), "1x14x14x96, {}, 1x1x1x576 -> 1x14x14x576"
    narrow = dataclasses.replace(wide, task=dataclasses.replace(wide.task, shapes=shapes.format("72x1x1x96x8")))
    wide = dataclasses.replace(wide, task=dataclasses.replace(wide.task, shapes=shapes.format("36x1x1x96x16")))
    larger = dataclasses.replace(wide, task=dataclasses.replace(wide.task, shapes=shapes.replace("14x14", "28x28")))
    assert narrow.operator == wide.operator != larger.operator


def test_it_ends_where_nothing_gets_better_and_keeps_the_best_round(tmp_path):
    done = train(what(tmp_path, options={"rounds": 30, "worse_after": 5}, patience=4), plugins(), data=school())
    training = done.card["training"]
    best = training["best_round"]
    assert 1 <= best <= 5 and training["rounds"] == best + 4 and "no better round in 4" in training["ended"]
    whole = train(what(tmp_path, options={"rounds": best}), plugins(), data=school())
    assert whole.card["metrics"] == done.card["metrics"], "what is written is the best round"


def test_in_the_end_it_learns_anew_from_all_as_many_rounds_as_were_best(tmp_path):
    options, data, groups = {"rounds": 30, "worse_after": 6}, school(), []

    class Slow(Schooled):
        """Begins with a wrong idea of one column."""

        def predict(self, task, X):
            return Prediction(self._means(X) @ (self.learned_ - 0.2 * np.eye(164)[5]), np.zeros(len(X)))

        def pretrain(self, some, *rest):
            groups.append(len(some))
            super().pretrain(some, *rest)

    def asked(halt_at=None):
        calls = iter(range(1, 1000))
        run = what(tmp_path, options=options, refit=True)
        return train(
            run, plugins(schooled=Slow), data=data, halt=lambda: "interrupted" if next(calls) == halt_at else None
        )

    whole = asked()
    best, rounds = (whole.card["training"][k] for k in ("best_round", "rounds"))
    assert whole.card["training"]["refit"] == {"rounds": best, "learned": "600 rows of 10 operators"}
    assert groups == [8, 8, 10], "a training, the return to its best round, all"
    plain = train(what(tmp_path / "..", options=options), plugins(schooled=Slow), data=data)
    assert whole.card["metrics"] == plain.card["metrics"], "figures are of operators that were not known"
    written = (tmp_path / "w").read_text()
    assert written != (tmp_path / ".." / "w").read_text() and "learned anew" in (tmp_path / "w.md").read_text()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["w", "w.md"]
    (tmp_path / "w").unlink()
    assert best > 2 and asked(halt_at=rounds + 2).stopped and not (tmp_path / "w").exists(), "while it learns anew"
    assert asked().card == whole.card and (tmp_path / "w").read_text() == written, "as if it had never stopped"


def test_operators_on_which_weights_are_judged_are_left_out_with_a_line(tmp_path):
    data, said = school(), []
    judged = dataclasses.replace(data[3].task, op="conv2d", shapes="1x56x56x64, 3x3x64x64 -> 1x56x56x64")
    mixed = [*data[:3], dataclasses.replace(data[3], task=judged), *data[4:]]
    done = train(what(tmp_path), plugins(), data=mixed, say=said.append)
    assert said[0].startswith("left out, because weights are judged on them: 1 operator (operator-3)")
    rest = train(what(tmp_path), plugins(), data=[*data[:3], *data[4:]])
    assert done.card == rest.card and not done.card["split"]["held_out_learned"], "as if it had not been there"
    page = tmp_path / "w.md"
    assert "do not judge" not in page.read_text()
    told = train(what(tmp_path, with_held_out=True, hold_out=("operator-1",)), plugins(), data=mixed).card
    assert told["split"]["held_out_learned"] == ["operator-3"] and "do not judge" in page.read_text()
    with pytest.raises(BenchError, match="every operator of the data is one on which weights are judged"):
        train(what(tmp_path), plugins(), data=[mixed[3]])


def test_an_interrupt_keeps_what_was_learned_and_the_same_command_goes_on(tmp_path):
    asked, said = [], []

    def halt():
        asked.append(0)
        return "interrupted" if len(asked) == 7 else None

    done = train(what(tmp_path), plugins(), data=school(), halt=halt)
    assert done.stopped and [p.name for p in tmp_path.iterdir()] == ["w.checkpoint"]
    again = train(what(tmp_path), plugins(), data=school(), say=said.append)
    assert said[1].startswith("goes on after round 7") and said[2].startswith("round 8 of 30")
    whole = train(what(tmp_path / ".."), plugins(), data=school())
    assert again.card == whole.card, "as if it had never stopped"


KILLED = """
import sys, time
from pathlib import Path
import tt_bench.train as train
from tt_bench_toy import Schooled, school
from test_train import plugins, what

def say(text):
    print(text, flush=True)
    if text.startswith("round 5 ") and sys.argv[2] == "slow":
        time.sleep(1000)

train.EVERY_S = 0.0
train.train(what(Path(sys.argv[1])), plugins(), data=school(), say=say)
"""


def test_a_killed_training_goes_on_to_the_same_weights(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    slow = subprocess.Popen([*command, "slow"], stdout=subprocess.PIPE, text=True, env=environment)
    assert slow.stdout is not None
    for line in slow.stdout:
        if line.startswith("round 5 "):
            break
    slow.send_signal(signal.SIGKILL)
    slow.wait(30)
    assert not (tmp_path / "w").exists() and checkpoint_of(tmp_path / "w").exists()
    done = subprocess.run([*command, "fast"], capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "goes on after round 4" in done.stdout and "round 4 of" not in done.stdout.split("goes on")[1]
    (tmp_path / "whole").mkdir()
    train(what(tmp_path / "whole"), plugins(), data=school())
    assert (tmp_path / "w").read_bytes() == (tmp_path / "whole" / "w").read_bytes(), "as if it had never stopped"


def test_a_checkpoint_of_something_else_or_damaged_is_one_line(tmp_path):
    calls = iter([None, "interrupted"])
    train(what(tmp_path), plugins(), data=school(), halt=lambda: next(calls))
    kept = checkpoint_of(tmp_path / "w")
    for other in ({"seed": 3}, {"options": {"rounds": 31}}, {"patience": 2}):
        with pytest.raises(BenchError, match="other data, options or seed"):
            train(what(tmp_path, **other), plugins(), data=school())
    raw = kept.read_bytes()
    for bad in (raw[:-40], raw[:9], b"", b"\x80\x04K\x01."):
        kept.write_bytes(bad)
        with pytest.raises(BenchError, match="delete it to begin anew") as e:
            train(what(tmp_path), plugins(), data=school())
        assert "\n" not in str(e.value)


def test_what_cannot_be_trained_is_one_line_with_its_exit_code(tmp_path):
    def refused(code, *words, **more):
        models = {"null": NullSurrogate}
        with pytest.raises(UserError) as e:
            train(Training(**{"folders": (), "model": "schooled", "out": tmp_path / "w", **more}), plugins(**models))
        text = str(e.value)
        assert e.value.exit_code == code and "\n" not in text and all(w in text for w in words), text

    refused(2, "lacks pretrain (Pretrains)", "(Saves)", model="null")
    refused(2, "no surrogate is called 'shooled'", model="shooled")
    refused(2, "no option 'round'", options={"round": 3})
    refused(2, "begins with none", options={"weights": "w"})
    refused(6, "no folder", folders=(str(tmp_path / "none"),))
    refused(6, "nothing to learn from", folders=(str(tmp_path),))
    refused(6, "its folder does not exist", out=tmp_path / "none" / "w")
    (tmp_path / "x.json").write_text("{")
    refused(6, "not readable as JSON", folders=(str(tmp_path),))
    with pytest.raises(BenchError, match="matches no operator"):
        train(what(tmp_path, hold_out=("conv*",)), plugins(), data=school())
    with pytest.raises(BenchError, match="every operator is held out"):
        train(what(tmp_path, hold_out=("*",)), plugins(), data=school())


def test_a_broken_model_is_named(tmp_path):
    class Rubbish(Schooled):
        def predict(self, task, X):
            raise ZeroDivisionError("oh")

    with pytest.raises(UserError, match=r"surrogate 'rubbish' of toy .* failed: ZeroDivisionError: oh"):
        train(Training((), "rubbish", tmp_path / "w"), plugins(rubbish=Rubbish), data=school())


def test_recordings_are_read_with_what_failed(tmp_path):
    parts = (recorded(task("a", 6)), recorded(task("b", 8)))
    files.write_t4(Recording("op:toy", "template", parts, "toy/2 cores", {"tvm": "0"}), tmp_path / "r.json.gz")
    (tmp_path / "README.md").write_text("not a recording")
    found = lessons.read([tmp_path])
    assert [x.name for x in found] == ["r/a", "r/b"] and found[0].device == "toy/2 cores"
    first = found[0]
    assert len(first.codes) == len(first.statements) == len(first.seconds) > 50
    best = first.codes[first.seconds.argmin()]
    assert parts[0].latency[parts[0].index[best.astype(np.int64).tobytes()]] == parts[0].best_s
    name, X, y = first.group("knobs")
    assert name is first.task and X.shape[0] == len(y) and y.max() == 1.0


def test_a_model_over_knobs_learns_without_statements(tmp_path):
    bare = recorded(task("a", 6))
    bare = dataclasses.replace(bare, statements=(None,) * len(bare.rows))
    files.write_t4(Recording("op:toy", "template", (bare,), "toy/2 cores", {"tvm": "0"}), tmp_path / "r.json.gz")
    with pytest.raises(BenchError, match="no operator has two rows with statements"):
        lessons.read([tmp_path])
    (found,) = lessons.read([tmp_path], "knobs")
    assert len(found.codes) == len(found.seconds) == len(bare.rows)
    assert found.group("knobs")[1].shape == found.task.space.encode(found.codes).shape
