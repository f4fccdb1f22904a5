"""What frames of Python's library and of common clients mean: ways to wait. Data: the first row that matches counts."""

from stallwatch.diagnosis.frames.table import Row, packages, standard

LIBRARY_ROWS: tuple[Row, ...] = (
    # The end of a process
    *standard("teardown", "is ending and waits for its threads", ("threading", "_shutdown")),
    *standard("teardown", "is ending and waits for its child processes",
              (r"multiprocessing\.util", "_exit_function|_run_finalizers")),
    *standard("teardown", "is ending and waits for its executor", (r"concurrent\.futures\.\w+", "_python_exit")),
    *standard("teardown", "is ending", ("logging", "shutdown"), ("atexit|weakref", "_run_exitfuncs|_exitfunc")),
    # Threads that have nothing to do
    *standard("idle", "waits for work", (r"concurrent\.futures\.thread", "_worker"), ("socketserver", "serve_forever"),
              (r"multiprocessing\.pool", r"_handle_\w+|_maintain\w*|worker"), (r"multiprocessing\.queues", "_feed"),
              (r"logging\.handlers", "_monitor|dequeue")),
    # Ways to wait
    *standard("join", "waits for a thread to end", ("threading", "join|_wait_for_tstate_lock|_join")),
    *standard("lock", "waits for a lock", ("threading", r"_?wait(?:_for)?|acquire|__enter__|_acquire\w*|_enter"),
              r"asyncio\.(?:locks|queues)"),
    *standard("lock", "waits for a lock shared with other processes", r"multiprocessing\.synchronize"),
    *standard("queue", "waits for a queue", ("queue", "get|put|join")),
    *standard("join", "waits for the result of a background task",
              (r"concurrent\.futures\.\w+", r"\w*result\w*|exception|wait|as_completed|shutdown")),
    *standard("process_queue", "waits for its pool of worker processes",
              (r"multiprocessing\.pool", "get|wait|next|map|starmap|apply|join")),
    *standard("process_queue", "waits for another process",
              r"multiprocessing\.(?:queues|connection|managers|pool|reduction)"),
    *standard("child", "waits for a child process", "subprocess", "pty",
              r"multiprocessing\.(?:process|popen_\w+|forkserver|resource_tracker|spawn)"),
    *standard("socket", "waits for the network",
              r"socket|ssl|http\.\w+|urllib\.\w+|smtplib|ftplib|imaplib|poplib|xmlrpc\.\w+"),
    *standard("socket", "waits in its asyncio event loop",
              r"asyncio\.(?:base_events|selector_events|runners|events|unix_events)"),
    *standard("socket", "waits for a socket or pipe", "selectors"),
    *standard("filesystem", "waits for the file system",
              r"shutil|pathlib(?:\.\w+)?|genericpath|posixpath|glob|fileinput|tempfile|gzip|bz2|lzma|zipfile(?:\.\w+)?"
              r"|tarfile|os|io|_pyio|codecs|dbm(?:\.\w+)?|shelve|_compression|filecmp|linecache|sqlite3(?:\.\w+)?",
              (r"pickle|json(?:\.\w+)?|csv", "dump|load|reader|writer|read"), ("logging", "emit|flush")),
    # Clients of other people's services
    *packages("tracker", "waits for its experiment tracker",
              "wandb|mlflow|comet_ml|neptune|clearml|swanlab|aim|sentry_sdk"),
    *packages("socket", "waits for the Hugging Face hub", "huggingface_hub"),
    *packages("socket", "waits for a Ray task", ("ray", r"get|wait|\w*get_objects\w*")),
    *packages("socket", "waits for the network",
              "urllib3|requests|httpx|httpcore|aiohttp|botocore|boto3|s3transfer|s3fs|gcsfs|adlfs|azure|grpc|websockets?",
              "zmq|redis|etcd3?|kazoo|pymongo|psycopg2?|pymysql|paramiko|smart_open|minio|oci",
              r"google\.(?:cloud|api_core|auth|resumable_media)"),
    *packages("process_queue", "waits for another process", "multiprocess|joblib|loky|billiard"),
    *packages("filesystem", "reads or writes a file",
              "h5py|zarr|pyarrow|lmdb|tables|netCDF4|rasterio|cv2|PIL|imageio|decord|av|soundfile|fsspec|nibabel",
              (r"numpy\.(?:lib|core|_core|memmap)(?:\.\w+)*", r"load|save\w*|memmap|\w+file|read\w*|write\w*|__new__")),
)  # fmt: skip
