"""The catalogue: which data sets there are, where each is published, under which licence, and how to read it."""

from __future__ import annotations

from typing import NamedTuple


class PublishedDataset(NamedTuple):
    """One data set; `kind` names its reader, and is empty where there is none."""

    name: str
    what: str
    ready: str
    where: str
    licence: str
    size: str
    command: str
    kind: str = ""


CATALOGUE = tuple(PublishedDataset(*entry) for entry in (
    ("host", "a saturated Linux machine, 252 metrics, 1 s, 49 minutes: the hard case", "yes",
     "comes with Pronto", "CC0 1.0", "1.3 MB", "pronto evaluate host"),
    ("server", "a Linux server at work, mostly calm, 254 metrics and a probe, 1 s, 64 minutes", "yes",
     "comes with Pronto", "CC0 1.0", "0.9 MB", "pronto evaluate server"),
    ("SMD", "28 servers, 38 metrics, 1 min, 5 weeks", "none; load_1 stands in",
     "github.com/NetManAIOps/OmniAnomaly, folder ServerMachineDataset", "MIT", "some 450 MB",
     "pronto evaluate ServerMachineDataset/train", "smd"),
    ("Bitbrains", "1,250 and 500 VMs, 10 metrics, 5 min, 1 to 3 months (GWA-T-12)", "none; name a column",
     "gwa.ewi.tudelft.nl/datasets/gwa-t-12-bitbrains",
     "none named: free to use if archive and paper (Shen et al., CCGrid 2015) are cited; ask before passing it on",
     "some 3 GB", "pronto forecast fastStorage/2013-8 --ready 'CPU usage [%]'", "bitbrains"),
    ("Westermo", "19 test systems, 23 metrics, 30 s, 1 month", "none; load-1m stands in",
     "github.com/westermo/test-system-performance-dataset", "CC BY 4.0", "about 360 MB",
     "pronto evaluate test-system-performance-dataset/data", "westermo"),
    ("Alibaba 2018", "about 4,000 machines, 7 metrics, 10 s, 8 days (machine usage)", "none; name a column",
     "github.com/alibaba/clusterdata, folder cluster-trace-v2018",
     "none named: free for research; its publisher asks to be told and cited", "some 9 GB unpacked",
     "sort -t, -k1,1 -k2,2n machine_usage.csv | head -n 700000 > some.csv; "
     "pronto evaluate some.csv --ready cpu_util_percent", "alibaba"),
    ("Exathlon", "93 traces of Spark applications on 4 machines, 2,283 metrics, 1 s", "none; name a column",
     "github.com/exathlonbenchmark/exathlon", "not for commercial use: no part of it may come with Pronto",
     "some 25 GB unpacked",
     "pronto evaluate cpu_contention --ready driver_StreamingMetrics_streaming_lastCompletedBatch_totalDelay_value",
     "exathlon"),
    ("KTH", "8 traces of a video and a key-value service on a cluster, 1 s; servers' metrics, and what clients saw",
     "none; name a column, such as ReadsAvg", "github.com/rafaelpasquini/traces-netsoft-2017", "CC BY 4.0",
     "some GB unpacked", "pronto evaluate KV-SingleApp-PeriodicLoad/X_cluster.csv --ready ReadsAvg", "kth"),
    ("DBSherlock", "a MySQL server under TPC-C or TPC-E, 1 s; 10 or 11 causes of trouble, 11 cases of each",
     "none; the average latency stands in", "github.com/dongyoungy/dbsherlock-reproducibility, folder datasets",
     "none named", "not stated", "pronto evaluate dbsherlock_dataset_tpcc_500w.mat", "dbsherlock"),
    ("rezolus", "recordings of rezolus in Parquet: counters and gauges of a Linux machine, usually 1 s",
     "yes: scheduler_runqueue_wait", "github.com/iopsystems/rezolus", "yours", "yours",
     "pronto evaluate recording.parquet", "rezolus"),
    ("SAP Cloud Infrastructure", "about 1,800 hypervisors and 48,000 VMs, 30 days; the nearest to the paper's",
     "yes: vrops_hostsystem_cpu_ready_milliseconds and vrops_hostsystem_cpu_contention_percentage",
     "zenodo.org/records/17357494", "see the record", "see the record", "not read yet: format not confirmed"),
    ("vSphere exports", "your own vCenter, usually 20 s", "cpu.ready.summation or cpu.readiness.average",
     "your own vCenter", "yours", "yours", "pronto evaluate stats.csv", "vsphere"),
    ("the paper's shape", "any number of nodes, 52 or 134 metrics, 20 s, 28 days", "in ms", "generated", "Pronto's",
     "as asked", "pronto generate vms made --length 28d --format parquet"),
))  # fmt: skip
