// Notes the longest time between two frames, in milliseconds, as window.longest.
(() => {
  let last = performance.now();
  window.longest = 0;
  const look = (now) => {
    window.longest = Math.max(window.longest, now - last);
    last = now;
    requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
})();
