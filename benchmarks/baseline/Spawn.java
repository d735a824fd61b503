import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Creates processes with ProcessBuilder, then waits for them. A contestant of spawn-suite; keys and output as
 * spawn_mech.c.
 *
 * <p>MECHANISM: a value of jdk.lang.Process.launchMechanism. Keys: program arg count limit rss env envlen, always with
 * after=1 and parallel=1. A thread of the library reaps each process when it ends, also while others are created.
 */
final class Spawn {
    /** Clock ticks a second in /proc, on every Linux that has OpenJDK. */
    private static final double TICKS = 100;

    private static final int CHUNK = 64 << 20;

    private Spawn() {}

    /** Returns the user and system CPU seconds of this process and of the children that were waited for. */
    private static double[] cpuSeconds() throws IOException {
        String stat = Files.readString(Path.of("/proc/self/stat"));
        String[] fields = stat.substring(stat.lastIndexOf(')') + 2).split(" ");
        long[] ticks = Arrays.stream(fields, 11, 15).mapToLong(Long::parseLong).toArray();
        return new double[] {(ticks[0] + ticks[2]) / TICKS, (ticks[1] + ticks[3]) / TICKS};
    }

    private static List<byte[]> resident(long mib) {
        List<byte[]> chunks = new ArrayList<>();
        for (long bytes = mib << 20; bytes > 0; bytes -= CHUNK) {
            byte[] chunk = new byte[(int) Math.min(bytes, CHUNK)];
            Arrays.fill(chunk, (byte) 1);
            chunks.add(chunk);
        }
        return chunks;
    }

    public static void main(String[] args) throws Exception {
        System.setProperty("jdk.lang.Process.launchMechanism", args[0]);
        Map<String, String> keys = new HashMap<>(Map.of("count", "1000", "limit", "60000", "rss", "0", "env", "0", "envlen", "0"));
        for (String text : Arrays.asList(args).subList(1, args.length)) {
            String[] pair = text.split("=", 2);
            keys.put(pair[0], pair[1]);
        }
        List<byte[]> resident = resident(Long.parseLong(keys.get("rss")));
        List<String> words = new ArrayList<>(List.of(keys.get("program")));
        if (keys.containsKey("arg")) {
            words.add(keys.get("arg"));
        }
        ProcessBuilder builder = new ProcessBuilder(words).inheritIO();
        for (int i = 0; i < Integer.parseInt(keys.get("env")); i++) {
            builder.environment().put(String.format("HQ_BENCH_%03d", i), "x".repeat(Integer.parseInt(keys.get("envlen"))));
        }
        int count = Integer.parseInt(keys.get("count"));
        List<Process> children = new ArrayList<>(count);
        double[] before = cpuSeconds();
        long begin = System.nanoTime();
        long limit = Long.parseLong(keys.get("limit")) * 1_000_000;
        while (children.size() < count && System.nanoTime() - begin < limit) {
            children.add(builder.start());
        }
        long spawning = System.nanoTime() - begin;
        for (Process child : children) {
            if (child.waitFor() != 0) {
                throw new IllegalStateException("a process failed");
            }
        }
        long seconds = System.nanoTime() - begin;
        double[] after = cpuSeconds();
        System.err.printf(java.util.Locale.ROOT, "%d %.6f %.6f %.6f %.6f%n", children.size(), seconds / 1e9, spawning / 1e9,
                after[0] - before[0], after[1] - before[1]);
        // The burden lives until here.
        System.exit(resident.stream().allMatch(chunk -> chunk[0] == 1) ? 0 : 1);
    }
}
