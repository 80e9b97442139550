"""Token files: what is asked for exists, what a run saw can be said without it, and Megatron reads
and writes the same bytes.
"""

import numpy as np
import pytest

from llmbench.core.errors import RequestError
from llmbench.launch.local import run_local
from llmbench.model.data import first_batches_fingerprint
from llmbench.model.token_files import idx_path, open_indexed, write_indexed
from llmbench.spec.resolve import resolve_run

REQUEST = {
    "model": "gpt-tiny",
    "seq_len": 32,
    "batch": {"micro": 2, "global_tokens": 256},
    "steps": 6,
    "warmup_steps": 2,
    "collective_steps": 0,
    "data": {"kind": "megatron", "paths": ["corpus"]},
}


def _corpus(folder, dtype="<u2"):
    random = np.random.default_rng(0)
    documents = [random.integers(0, 4096, n) for n in (100, 1, 700, 40)]
    write_indexed(folder / "corpus", documents, np.dtype(dtype))
    return documents


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"paths": ["corpus"]}, "corpus.idx: no such file"),
        ({"paths": ["corpus.bin"]}, "corpus.bin.bin: no such file"),
        ({"paths": []}, "give paths"),
        ({"paths": ["corpus"], "tokenizer": "corpus.bin"}, "no tokenizer"),
        ({"paths": ["../corpus"]}, "outside the project"),
    ],
)
def test_a_request_names_files_that_are_there(tmp_path, monkeypatch, data, says):
    monkeypatch.chdir(tmp_path)
    _corpus(tmp_path)
    if says.startswith("corpus.idx"):
        idx_path("corpus").unlink()
    with pytest.raises(RequestError) as told:
        resolve_run(
            REQUEST | dict(strategy="single", world_size=1, data={"kind": "megatron"} | data)
        )
    assert says in str(told.value) and "\n" not in str(told.value)


@pytest.mark.slow
def test_a_run_saw_what_its_request_says(tmp_path, monkeypatch):
    """One and two ranks, and fewer steps: the fingerprints are those of the request."""
    monkeypatch.chdir(tmp_path)
    _corpus(tmp_path)
    asked = [("single", 1, 6), ("ddp", 2, 6), ("single", 1, 5), ("single", 1, 4)]
    specs = [
        resolve_run(REQUEST | dict(strategy=s, world_size=n, steps=steps)) for s, n, steps in asked
    ]
    runs = [run_local(spec, tmp_path / str(i)).spec.data for i, spec in enumerate(specs)]
    assert [r.fingerprint for r in runs] == [first_batches_fingerprint(s, s.steps) for s in specs]
    first = first_batches_fingerprint(specs[0])
    assert [r.fingerprint_first for r in runs] == [first, first, first, None]
    assert runs[2].fingerprint == first, "five steps are the first five"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["<u2", "<i4"])
def test_megatron_reads_and_writes_the_same_bytes(tmp_path, dtype):
    """Both directions against megatron-core's own reader and writer."""
    theirs = pytest.importorskip(
        "megatron.core.datasets.indexed_dataset",
        reason="needs megatron-core (pip install megatron-core)",
    )
    torch = pytest.importorskip("torch")
    documents = _corpus(tmp_path, dtype)
    read = theirs.IndexedDataset(str(tmp_path / "corpus"))
    assert read.index.dtype == np.dtype(dtype).type and read.document_indices.tolist() == [
        0,
        1,
        2,
        3,
        4,
    ]
    assert all(np.array_equal(read[i], d) for i, d in enumerate(documents))
    builder = theirs.IndexedDatasetBuilder(str(tmp_path / "built.bin"), dtype=np.dtype(dtype).type)
    for document in documents:
        builder.add_document(torch.from_numpy(document), [len(document)])
    builder.finalize(str(tmp_path / "built.idx"))
    for end in ("bin", "idx"):
        assert (tmp_path / f"built.{end}").read_bytes() == (tmp_path / f"corpus.{end}").read_bytes()
    assert open_indexed(tmp_path / "built").document(2).tolist() == documents[2].tolist()


@pytest.mark.slow
def test_documents_of_several_sequences_and_modes_are_read(tmp_path):
    """What Megatron writes beyond our own writer: two sequences in a document, an empty one, a mode
    for each sequence.
    """
    theirs = pytest.importorskip(
        "megatron.core.datasets.indexed_dataset",
        reason="needs megatron-core (pip install megatron-core)",
    )
    torch = pytest.importorskip("torch")
    builder = theirs.IndexedDatasetBuilder(str(tmp_path / "m.bin"), dtype=np.int64, multimodal=True)
    builder.add_document(torch.arange(7), [3, 4], [0, 1])
    builder.add_document(torch.arange(0), [0], [0])
    builder.add_document(torch.arange(5), [5], [1])
    builder.finalize(str(tmp_path / "m.idx"))
    read = open_indexed(tmp_path / "m")
    assert [read.document(i).tolist() for i in range(read.n_documents)] == [
        list(range(7)),
        [],
        list(range(5)),
    ]
