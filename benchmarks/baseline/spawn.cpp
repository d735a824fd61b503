// Creates processes from C++, then waits for them. A contestant of spawn-suite; keys and output as spawn_mech.c.
//
// MECHANISM: fork | posix_spawn. Keys: program arg count limit rss env envlen, always with after=1 and parallel=1.
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <spawn.h>
#include <string>
#include <sys/resource.h>
#include <sys/wait.h>
#include <system_error>
#include <unistd.h>
#include <vector>

extern char **environ;
using Clock = std::chrono::steady_clock;

static double cpu_seconds(timeval rusage::*part)
{
    double sum = 0;
    for (int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
        rusage usage{};
        getrusage(who, &usage);
        sum += static_cast<double>((usage.*part).tv_sec) + static_cast<double>((usage.*part).tv_usec) / 1e6;
    }
    return sum;
}

static std::vector<char *> pointers(std::vector<std::string> &strings)
{
    std::vector<char *> list;
    for (auto &text : strings)
        list.push_back(text.data());
    list.push_back(nullptr);
    return list;
}

static pid_t create(const std::string &mechanism, char *const *argv, char *const *environment)
{
    if (mechanism == "posix_spawn") {
        pid_t pid;
        if (int error = posix_spawnp(&pid, argv[0], nullptr, nullptr, argv, environment))
            throw std::system_error(error, std::generic_category(), "posix_spawn");
        return pid;
    }
    pid_t pid = fork();
    if (pid == 0) {
        execvpe(argv[0], argv, environment);
        _exit(127);
    }
    if (pid < 0)
        throw std::system_error(errno, std::generic_category(), "fork");
    return pid;
}

static double since(Clock::time_point begin)
{
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

int main(int argc, char **argv)
{
    std::map<std::string, std::string> keys{{"count", "1000"}, {"limit", "60000"}, {"rss", "0"}, {"env", "0"}, {"envlen", "0"}};
    for (int i = 2; i < argc; i++) {
        std::string text = argv[i];
        auto at = text.find('=');
        keys[text.substr(0, at)] = text.substr(at + 1);
    }
    std::vector<char> resident(std::stoul(keys["rss"]) << 20, 1);
    std::vector<std::string> words{keys["program"]}, variables;
    if (keys.count("arg"))
        words.push_back(keys["arg"]);
    for (char **entry = environ; *entry; entry++)
        variables.push_back(*entry);
    for (int i = 0; i < std::stoi(keys["env"]); i++) {
        char name[32];
        std::snprintf(name, sizeof name, "HQ_BENCH_%03d=", i);
        variables.push_back(name + std::string(std::stoul(keys["envlen"]), 'x'));
    }
    auto arguments = pointers(words), environment = pointers(variables);
    std::vector<pid_t> children(std::stoul(keys["count"]));
    size_t done = 0;
    double user = -cpu_seconds(&rusage::ru_utime), sys = -cpu_seconds(&rusage::ru_stime);
    auto begin = Clock::now();
    double limit = std::stod(keys["limit"]) / 1e3;
    while (done < children.size() && since(begin) < limit)
        children[done++] = create(argv[1], arguments.data(), environment.data());
    double spawning = since(begin);
    for (size_t i = 0; i < done; i++) {
        int status;
        if (waitpid(children[i], &status, 0) != children[i] || status != 0) {
            std::fprintf(stderr, "a process failed\n");
            return 1;
        }
    }
    double seconds = since(begin);
    user += cpu_seconds(&rusage::ru_utime);
    sys += cpu_seconds(&rusage::ru_stime);
    std::fprintf(stderr, "%zu %.6f %.6f %.6f %.6f\n", done, seconds, spawning, user, sys);
    return resident.empty() || resident.back() == 1 ? 0 : 1;
}
