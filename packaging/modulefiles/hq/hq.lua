-- Lmod: copy it to MODULEPATH/hq/VERSION.lua; the tarball is unpacked below `base`, a directory for each version.
local base = "/opt/hq"
local root = pathJoin(base, myModuleVersion())

help([[hq runs very many tasks on a cluster, or on one machine. Begin with `hq doctor` and `hq run --help`.]])
whatis("Name: hq")
whatis("Version: " .. myModuleVersion())
whatis("Description: distributed runtime for very many tasks; server, workers and command line in one binary")

conflict("hq")
prepend_path("PATH", pathJoin(root, "bin"))
prepend_path("MANPATH", pathJoin(root, "share/man"))
prepend_path("FPATH", pathJoin(root, "share/zsh/site-functions"))
if myShellName() == "bash" then
    execute({ cmd = "source " .. pathJoin(root, "share/bash-completion/completions/hq"), modeA = { "load" } })
    execute({ cmd = "complete -r hq 2>/dev/null || true", modeA = { "unload" } })
end
