# Cluster functions of batchtools for hq. In `batchtools.conf.R`:
#
#   source("makeClusterFunctionsHq.R")
#   cluster.functions = makeClusterFunctionsHq()
#
# Resources of submitJobs(): ncpus, memory (MiB), walltime (seconds), ngpus, priority, and hq, a character vector of further
# options of `hq submit`.

#' @param server.dir Directory of the server; NULL = $HQ_SERVER_DIR, or the one that hq uses by itself.
#' @param hq The program hq.
#' @param rscript The program that runs R on the workers.
#' @param gpu.resource Resource of the workers that ngpus asks for.
#' @param outage Seconds that a server may be away, for a restart, when it is asked for jobs.
makeClusterFunctionsHq = function(server.dir = NULL, hq = "hq", rscript = "Rscript",
  gpu.resource = "gpus/nvidia", outage = 60, scheduler.latency = 1, fs.latency = 65) {
  run = function(args) {
    where = if (!is.null(server.dir)) c("--server-dir", shQuote(path.expand(server.dir)))
    batchtools::runOSCommand(hq, c("--output-mode", "quiet", where, args))
  }

  option = function(format, value) if (!is.null(value)) sprintf(format, value)
  whole = function(value) if (!is.null(value)) as.integer(ceiling(value))

  submitJob = function(reg, jc) {
    r = jc$resources
    args = c(
      "submit",
      sprintf("--name=%s", jc$job.hash),
      # batchtools keeps logs itself.
      "--stdout=none", "--stderr=none",
      option("--cpus=%i", whole(r$ncpus)),
      option("--resource=mem=%iMiB", whole(r$memory)),
      option("--time-limit=%is", whole(r$walltime)),
      option("--time-request=%is", whole(r$walltime)),
      option(paste0("--resource=", gpu.resource, "=%s"), r$ngpus),
      option("--priority=%i", whole(r$priority)),
      if (!is.null(r$hq)) shQuote(r$hq),
      "--", shQuote(rscript), "-e",
      shQuote(sprintf("batchtools::doJobCollection('%s', '%s')", jc$uri, jc$log.file))
    )
    res = run(args)
    id = trimws(tail(res$output, 1L))
    if (res$exit.code > 0L || !grepl("^[0-9]+$", id)) {
      return(batchtools::cfHandleUnknownSubmitError("hq submit", res$exit.code, res$output))
    }
    batchtools::makeSubmitJobResult(status = 0L, batch.id = id)
  }

  # The quiet mode prints a line for each job: its id and its state.
  # A server that is being restarted is waited for: an error would end waitForJobs().
  listJobs = function(state) {
    until = Sys.time() + outage
    repeat {
      res = run(c("job", "list", "--filter", state))
      if (res$exit.code == 0L) {
        break
      }
      if (Sys.time() > until) {
        stop("hq job list failed: ", paste(res$output, collapse = "\n"))
      }
      Sys.sleep(1)
    }
    sub(" .*", "", grep("^[0-9]+ ", res$output, value = TRUE))
  }

  killJob = function(reg, batch.id) {
    batchtools::cfKillJob(reg, hq, c(if (!is.null(server.dir)) c("--server-dir", shQuote(path.expand(server.dir))),
      "job", "cancel", batch.id))
  }

  batchtools::makeClusterFunctions(
    name = "hq",
    submitJob = submitJob,
    killJob = killJob,
    listJobsQueued = function(reg) listJobs("waiting"),
    listJobsRunning = function(reg) listJobs("running"),
    store.job.collection = TRUE,
    scheduler.latency = scheduler.latency,
    fs.latency = fs.latency
  )
}
