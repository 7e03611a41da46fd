//! The specs that come with Siltstone: `workloads/*.toml`.

macro_rules! shipped {
    ($($name:literal)*) => {
        /// Names and texts, by name.
        pub(super) const SHIPPED: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../../../workloads/", $name, ".toml")))),*];
    };
}

shipped! {
    "compare" "deleterandom" "drift" "fillrandom" "fillseq" "filluniquerandom" "guo17-latest-hot-range"
    "guo17-latest-uniform" "guo17-latest-zipfian" "insert-benchmark" "luo19-bursts" "luo19-uniform" "luo19-zipf"
    "mixgraph" "multireadrandom" "overwrite" "queue" "readmissing" "readrandom" "readrandomwriterandom" "readreverse"
    "readseq" "readwhilewriting" "real-data" "sarkar21-base" "sarkar21-deletes" "sarkar21-mixed" "sarkar21-normal"
    "sarkar21-normal-reads" "sarkar21-prefix-zipf" "sarkar21-range-deletes" "sarkar21-updates" "sarkar21-zipf-reads"
    "seekrandom" "time-series" "ycsb-a" "ycsb-b" "ycsb-c" "ycsb-d" "ycsb-e" "ycsb-f"
}
