import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.*;

/**
 * Runs many command-line tools in one JVM, because starting a JVM for each is slow.
 *
 * Each line of standard input is one run: base64 fields split by blanks (an empty one is "-"): the class, the time limit
 * in ms, the standard input, then the arguments. Each line of standard output is its answer: exit code ("timeout" when
 * the limit was over), base64 of what it printed, base64 of its standard error. A tool that calls System.exit ends and its
 * shutdown hooks run (the console producer sends its last batch in one), the JVM stays. Each run gets the tools' classes
 * anew, because some count in static fields.
 */
public class ToolHost {
  /** Ends a tool in place of the JVM; an Error, because tools catch every Exception. */
  static final class Exit extends Error {
    Exit(int code) { super("exit " + code); }
  }

  /** Loads the classes of the tools anew and everything else from the class path. */
  static final class Fresh extends ClassLoader {
    Fresh() { super(ToolHost.class.getClassLoader()); }
    @Override protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
      boolean tool = name.startsWith("kafka.tools.") || name.startsWith("kafka.admin.") || name.startsWith("org.apache.kafka.tools.");
      if (!tool || name.startsWith("org.apache.kafka.tools.api.")) return super.loadClass(name, resolve);
      synchronized (getClassLoadingLock(name)) {
        Class<?> known = findLoadedClass(name);
        if (known != null) return known;
        try (InputStream in = getParent().getResourceAsStream(name.replace('.', '/') + ".class")) {
          if (in == null) throw new ClassNotFoundException(name);
          byte[] bytes = in.readAllBytes();
          return defineClass(name, bytes, 0, bytes.length);
        } catch (IOException e) {
          throw new ClassNotFoundException(name, e);
        }
      }
    }
  }

  /** Collects what a tool prints, up to a limit. */
  static final class Printed extends OutputStream {
    private final ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    @Override public synchronized void write(int b) { if (bytes.size() < 8_000_000) bytes.write(b); }
    @Override public synchronized void write(byte[] b, int from, int length) { if (bytes.size() < 8_000_000) bytes.write(b, from, length); }
    synchronized String take() { String all = encode(bytes.toByteArray()); bytes.reset(); return all; }
  }

  static String encode(byte[] bytes) { return bytes.length == 0 ? "-" : Base64.getEncoder().encodeToString(bytes); }
  static String decode(String field) { return new String(Base64.getDecoder().decode(field.equals("-") ? "" : field), StandardCharsets.UTF_8); }

  @SuppressWarnings({"removal", "deprecation", "unchecked"})
  public static void main(String[] unused) throws Exception {
    PrintStream answers = System.out;
    BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    Printed out = new Printed(), error = new Printed();
    System.setOut(new PrintStream(out, true));
    System.setErr(new PrintStream(error, true));
    String[] code = {null};
    System.setSecurityManager(new SecurityManager() {
      @Override public void checkPermission(java.security.Permission permission) {}
      @Override public void checkPermission(java.security.Permission permission, Object context) {}
      @Override public void checkExit(int status) { if (code[0] == null) code[0] = String.valueOf(status); throw new Exit(status); }
    });
    for (String line; (line = requests.readLine()) != null; ) {
      String[] fields = line.split(" ");
      for (int i = 0; i < fields.length; i++) fields[i] = decode(fields[i]);
      out.take(); error.take();
      code[0] = null;
      System.setIn(new ByteArrayInputStream(fields[2].getBytes(StandardCharsets.UTF_8)));
      Thread tool = new Thread(() -> {
        try {
          new Fresh().loadClass(fields[0]).getMethod("main", String[].class).invoke(null, (Object) Arrays.copyOfRange(fields, 3, fields.length));
        } catch (java.lang.reflect.InvocationTargetException e) {
          if (!(e.getCause() instanceof Exit)) { code[0] = "1"; e.getCause().printStackTrace(); }
        } catch (Throwable e) {
          code[0] = "1"; e.printStackTrace();
        }
      });
      tool.setDaemon(true);
      tool.start();
      tool.join(Long.parseLong(fields[1]));
      if (tool.isAlive()) code[0] = "timeout";
      runShutdownHooks();
      if (tool.isAlive()) { tool.interrupt(); tool.join(3000); }
      if (code[0] == null) code[0] = "0";
      System.out.flush(); System.err.flush();
      answers.println(code[0] + " " + out.take() + " " + error.take());
      answers.flush();
    }
    Runtime.getRuntime().halt(0);
  }

  /** What the JVM would do now if it ended. */
  @SuppressWarnings("unchecked")
  static void runShutdownHooks() throws Exception {
    var field = Class.forName("java.lang.ApplicationShutdownHooks").getDeclaredField("hooks");
    field.setAccessible(true);
    List<Thread> hooks = new ArrayList<>(((Map<Thread, Thread>) field.get(null)).keySet());
    for (Thread hook : hooks) { Runtime.getRuntime().removeShutdownHook(hook); hook.setDaemon(true); hook.start(); }
    for (Thread hook : hooks) hook.join(10_000);
  }
}
