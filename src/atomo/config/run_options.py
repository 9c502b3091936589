"""The options of a training run.

Each field is a command-line option of the same name, with `-` for `_`. The names that the published
ATOMO scripts used keep their meaning.
"""

from dataclasses import dataclass

from atomo.config.comm_types import PARAMETER_SERVER
from atomo.core.arguments import option

__all__ = ["RunOptions"]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of one training run. Abstract: `Settings` checks them."""

    n: int = option(3, "processes: 1 master and n-1 workers, or n workers (see --comm-type)")
    hostfile: str = option("", "file of hosts, the master's host first; empty: only this host")
    slurm: bool = option(
        False, "run on the hosts of the SLURM allocation; --n defaults to its tasks: yes or no"
    )
    task: str = option("images", "kind of training; if not given, the task of --dataset")
    network: str = option("LeNet", "model, e.g. LeNet, ResNet18, torchvision:NAME, timm:NAME")
    weights: str = option(
        "", "initial weights, a file on every host: .npz (ViT, Mixer) or .safetensors"
    )
    dataset: str = option(
        "Digits", "Digits, MNIST, Cifar10, Cifar100, SVHN, ImageNet, Imagenette, Folder or Noise"
    )
    data_dir: str = option("data", "folder of the data sets, on every host")
    image_size: int | None = option(
        None, "height and width of images, pixels; empty: the data set's"
    )
    batch_size: int = option(32, "samples per batch of one worker")
    batches_per_step: int = option(
        1, "batches per step: gradients are accumulated over them (gradient accumulation)"
    )
    test_batch_size: int = option(1000, "batch size of the evaluator")
    epochs: int = option(10, "number of passes over the training data")
    max_steps: int = option(1_000_000, "maximum number of steps, if --epochs do not end before")
    optimizer: str = option("sgd", "optimizer: sgd, adam, adamw, muon (adamw for vectors)")
    lr: float | None = option(
        None, "learning rate; empty: sgd 0.02, others 0.001; with majority-vote codecs 0.0001"
    )
    momentum: float = option(0.9, "momentum of sgd; higher => past gradients count longer")
    nesterov: bool | None = option(
        None,
        "use Nesterov momentum: yes or no; empty: yes where all entries wait a little: PowerSGD, "
        "ACP-SGD, error feedback of codecs that send every entry",
    )
    weight_decay: float = option(0.0, "weight decay (L2 penalty)")
    decay_norms: bool = option(
        True,
        "weight decay of norm layers and biases too: yes, as in PyTorch; no, as in many papers",
    )
    clip_grad: float = option(
        0.0, "gradient clipping: maximum norm of a step's mean gradient; 0: none"
    )
    label_smoothing: float = option(0.0, "share of each label that is spread over all classes")
    ema_decay: float = option(0.0, "decay of an averaged copy of the weights (EMA); 0: none")
    precision: str = option(
        "fp32", "data type of forward and backward passes (autocast): fp32, bf16, or fp16 on GPUs"
    )
    noise_damping: bool = option(
        True, "shorten sgd's steps by the measured noise of an unbiased codec: yes or no"
    )
    lr_shrinkage: float = option(1.0, "factor on the learning rate every --lr-shrink-freq steps")
    lr_shrink_freq: int = option(50, "steps between two applications of --lr-shrinkage")
    schedule: str = option(
        "constant", "learning-rate schedule: constant, step, multistep, cosine, linear"
    )
    lr_warmup_epochs: float = option(
        0.0, "epochs in which the learning rate rises to its full value"
    )
    lr_warmup_from: float | None = option(
        None, "share of the full rate to begin at; empty: --lr with --lr-scale-by-workers, else 0.1"
    )
    lr_scale_by_workers: bool = option(
        False, "multiply --lr by the number of workers and by --batches-per-step: yes or no"
    )
    lr_step_epochs: float = option(30.0, "epochs between two decays of --schedule step")
    lr_milestones: str = option("", "epochs of the decays of --schedule multistep: '30, 60, 80'")
    lr_gamma: float = option(0.1, "factor of each decay of step and multistep; lower => faster")
    lr_end: float = option(0.0, "share of the rate that cosine and linear reach at the end")
    lr_by_epoch: bool = option(False, "update the learning rate after epochs, not steps: yes or no")
    recipe: str = option("", "published method with all its settings, e.g. dgc; other options win")
    code: str = option(
        "svd",
        "gradient codec, e.g. sgd, fp16, svd, 'svd(rank=3)'; auto: chosen per layer by measurement",
    )
    error_budget: float | None = option(
        None, "with --code auto: maximum of (squared error / squared norm) of the mean gradient"
    )
    auto_share: float = option(
        0.1,
        "maximum share of the run time that --code auto and --fusion auto spend on measurements",
    )
    code_schedule: str = option("", "codecs by epoch: 'EPOCH: CODEC; EPOCH: CODEC'; empty: --code")
    code_for: str = option(
        "", "codecs of single parameters: 'CODEC: NAME NAME*; CODEC: NAME'; others: --code"
    )
    warmup_epochs: int = option(
        0, "E epochs in which the codec's ratio falls from ratio^(1/(E+1)) to its value"
    )
    compress_ratio: float | None = option(None, "share of entries that sparsifiers send")
    svd_rank: int | None = option(None, "expected atoms per layer of svd; lower => fewer bytes")
    quantization_level: int | None = option(None, "bits per entry of the quantising codecs")
    bucket_size: int | None = option(None, "entries that share one norm in the quantising codecs")
    memory: str = option(
        "auto",
        "state that workers keep for error feedback: auto, none, residual, dgc, momentum, adam",
    )
    comm_type: str = option(
        PARAMETER_SERVER,
        "how gradients are averaged: ParameterServer (a master averages, and sends weights), or "
        "without a master: Allgather, Allreduce, PowerSGD, ACPSGD, Chunked",
    )
    hierarchical: str = option(
        "",
        "without a master: dense gradients inside a host, compressed between hosts: yes (hosts "
        "by name), no, or the number of ranks per host",
    )
    down: str = option(
        "auto",
        "sent by the master: weights[(bf16)], updates (gradients), auto (smaller), delta(CODEC)",
    )
    local_steps: str = option(
        "1", "steps of a worker alone between two exchanges: H, or by epoch: '0: 1; 2: 30'"
    )
    local_seconds: float = option(
        0.0,
        "with --local-steps: seconds of a round, in which faster workers take more steps; 0: H "
        "steps each",
    )
    outer: str = option(
        "auto",
        "with --local-steps: optimizer of the mean difference: auto, 'sgd(lr=0.7, ...)', sign",
    )
    outer_mean: str = option(
        "workers", "with --local-steps: mean of an entry, over all workers or over its senders"
    )
    fragments: int = option(1, "with --local-steps: parts of the model, exchanged in turn")
    overlap: str = option(
        "0", "with --local-steps: steps taken during an exchange; round: the whole next round"
    )
    mix: str = option(
        "0",
        "with --local-steps: share of its own weights that a worker continues from; unsent: its "
        "own weights where nothing was sent",
    )
    transform: str = option(
        "none", "with --local-steps: dct: codecs see the cosine transform of differences"
    )
    num_aggregate: int = option(0, "gradients that complete a step; 0: those of all workers")
    grace: float = option(
        0.0, "with --num-aggregate: wait for late gradients up to this multiple of the time so far"
    )
    step_timeout: float = option(
        0.0, "with a master: seconds after which a step uses the gradients received; 0: never"
    )
    dense_below: int = option(0, "parameters of fewer entries are sent as float32")
    dense_steps: int = option(0, "first steps, in which all gradients are sent as float32")
    fusion: str = option(
        "",
        "grouping of gradients into messages: auto (measured), mergecomp, layer, one, "
        "count:MESSAGES, bytes:MB, cuts:LIST; empty: bytes:MB of --fusion-mb",
    )
    fusion_mb: float = option(4.0, "MB of gradient per message; higher => less overlap")
    blosc_codec: str = option("lz4", "lossless compressor: none, blosclz, lz4, lz4hc, zlib or zstd")
    blosc_level: int = option(5, "level of --blosc-codec, 0..9; higher => smaller and slower")
    blosc_shuffle: str = option("byte", "shuffle filter of --blosc-codec: none, byte or bit")
    enable_gpu: str | bool = option("", "yes: CUDA, on all GPUs of each host; no or empty: CPU")
    master_device: str = option(
        "cpu",
        "with --enable-gpu: device of the master's sums and optimizer: cpu, or gpu (sends weights)",
    )
    cuda_aware_mpi: str = option(
        "auto", "on GPUs, without a master: auto (dense sums from GPU to GPU if MPI can) or no"
    )
    threads: int = option(0, "compute threads per process; 0: cores of a host / its workers")
    train_dir: str = option("", "folder of the run; empty: a new one under runs/")
    eval_freq: int = option(100, "steps between two checkpoints")
    checkpoint_every: float = option(
        0.0, "seconds after which a checkpoint is due as well; 0: never"
    )
    keep_checkpoints: int = option(0, "number of newest checkpoints to keep; 0: all")
    resume: str = option(
        "auto",
        "auto: continue the run in --train-dir; anyway: also with another codec, memory, "
        "optimizer or data; never: start anew; or the folder of a run to continue from",
    )
    dump_every: int = option(0, "steps between two dumps of worker 1's gradient to a file; 0: none")
    evaluator: str = option("local", "local: an evaluator beside the run; none: start it yourself")
    report: bool = option(True, "report.html and events.jsonl in --train-dir; no: neither")
    seed: int = option(1, "seed of all random numbers")
    log_interval: int = option(10, "steps between two lines of progress")
    log_format: str = option("text", "text, or atomo: lines of the published ATOMO")
    timeout: float = option(300.0, "maximum wait for another rank, seconds")
    min_workers: int = option(0, "minimum number of living workers; 0: half of them")
    spares: int = option(0, "processes beyond --n that wait, and replace processes that die")
    max_strikes: int = option(3, "with a master: refused frames in a row that drop a worker")
    max_restarts: int = option(
        3, "maximum restarts from the newest checkpoint after lost processes"
    )
    mpi_args: str = option("", "further arguments for mpirun")
